/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "machine.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_BLOCKS_AT_ONCE = 256 };
static const size_t STACK = 256 * 1024;
static const unsigned long TOO_IDLE = 400000000; /* turns: minutes */

__thread machine_thread *machine_self;

void machine_fault(const char *format, ...) {
  const machine_thread *t = machine_self;
  va_list values;
  va_start(values, format);
  fprintf(stderr, "the emulated GPU: ");
  vfprintf(stderr, format, values);
  if (t) {
    fprintf(stderr, " (kernel %s, block %u of %u, thread %u of %u)", t->block->kernel,
            t->block->index.x, t->block->grid.x, t->index.x, t->block->threads.x);
  }
  fprintf(stderr, "\n");
  va_end(values);
  abort();
}

/* ---- Coroutines ----------------------------------------------------------------------------------------- */

/* Leaves the registers that a function must keep on the stack, and goes on where another did so. */
void machine_switch(void **leave, void *enter);
#if defined(__aarch64__)
__asm__(
    ".text\n.global machine_switch\n.hidden machine_switch\n.type machine_switch, %function\n"
    "machine_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n  ret\n"
    ".size machine_switch, . - machine_switch\n");
enum { SAVED_WORDS = 20, RETURN_WORD = 11, WORDS_ABOVE = 0 };
#elif defined(__x86_64__)
__asm__(
    ".text\n.global machine_switch\n.hidden machine_switch\n.type machine_switch, @function\n"
    "machine_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size machine_switch, . - machine_switch\n");
/* Above the address to return to there is one for `start` to return to, which it never does. */
enum { SAVED_WORDS = 7, RETURN_WORD = 6, WORDS_ABOVE = 1 };
#else
#error "the emulated GPU knows AArch64 and x86-64"
#endif

/* Threads and stacks for one block in flight. */
typedef struct room {
  machine_block block;
  machine_thread *threads;
  char *stacks;
  machine_kernel *kernel;
  const machine_arguments *arguments;
  void *caller; /* the stack pointer of who runs the block */
  struct room *next;
} room;

static __thread room *room_in_use;

static void go_to(machine_thread *to) {
  machine_thread *from = machine_self;
  if (to == from) return;
  machine_self = to;
  machine_switch(&from->stack_pointer, to->stack_pointer);
}

void machine_got_further(void) { machine_self->block->idle = 0; }

void machine_take_turns(void) {
  machine_block *block = machine_self->block;
  block->idle++;
  if (block->idle > TOO_IDLE) machine_fault("everybody waits, for nobody");
  /* What everybody waits for may be another block's. */
  if (block->idle % (2 * block->alive + 64) == 0) sched_yield();
  go_to(machine_self->next);
}

/* ---- Meetings ------------------------------------------------------------------------------------------- */

static void end_block_meeting(machine_block *block) {
  block->here = 0;
  block->meetings++;
  block->said_so[block->meetings % 2] = 0;
  block->idle = 0;
}

int machine_sync_block(int so) {
  machine_block *block = machine_self->block;
  const unsigned long meeting = block->meetings;
  block->said_so[meeting % 2] |= so;
  if (++block->here == block->alive) {
    end_block_meeting(block);
  } else {
    while (block->meetings == meeting) machine_take_turns();
  }
  return block->said_so[meeting % 2];
}

const unsigned long long *machine_meet(unsigned operation, unsigned long long value) {
  machine_warp *warp = machine_self->warp;
  const unsigned long meeting = warp->meetings;
  if (warp->alive != MACHINE_LANES) {
    machine_fault("lanes meet while only %u of %d are there", warp->alive, MACHINE_LANES);
  }
  if (warp->here && warp->operation != operation) {
    machine_fault("lanes of a warp meet in different operations, %x and %x", warp->operation,
                  operation);
  }
  warp->operation = operation;
  warp->values[meeting % 2][machine_self->index.x % MACHINE_LANES] = value;
  if (++warp->here == MACHINE_LANES) {
    warp->here = 0;
    warp->meetings++;
    machine_got_further();
  } else {
    while (warp->meetings == meeting) machine_take_turns();
  }
  return warp->values[meeting % 2];
}

/* ---- Copies --------------------------------------------------------------------------------------------- */

/* They are made as late as they may be. */
static void do_copies_before(machine_thread *t, unsigned group) {
  while (t->first_copy != t->last_copy) {
    const machine_copy *copy = &t->copies[t->first_copy % MACHINE_MOST_COPIES];
    if ((int)(copy->group - group) >= 0) return;
    memcpy(copy->to, copy->from, (size_t)copy->valid);
    memset(copy->to + copy->valid, 0, 16 - (size_t)copy->valid);
    t->first_copy++;
  }
}

void machine_copy_async(void *to, const void *from, int valid) {
  machine_thread *t = machine_self;
  if (valid < 0 || valid > 16) machine_fault("a copy of %d bytes: expected 0 to 16", valid);
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16) {
    machine_fault("a copy of 16 bytes from %p to %p, which are not multiples of 16", from, to);
  }
  if (t->last_copy - t->first_copy == MACHINE_MOST_COPIES) machine_fault("too many copies at once");
  t->copies[t->last_copy++ % MACHINE_MOST_COPIES] =
      (machine_copy){.to = to, .from = from, .valid = valid, .group = t->groups};
}

void machine_commit_copies(void) { machine_self->groups++; }

void machine_wait_for_all_but(unsigned groups) {
  do_copies_before(machine_self, machine_self->groups - groups);
}

/* ---- Blocks --------------------------------------------------------------------------------------------- */

/* Where every coroutine begins, and ends. It never returns, so AddressSanitizer would keep the bounds of its
 * variables on a stack that others will use. */
__attribute__((no_sanitize_address)) static void start(void) {
  room *r = room_in_use;
  r->kernel(*r->arguments);
  machine_thread *t = machine_self;
  do_copies_before(t, t->groups + 1);
  if (t->warp->here) machine_fault("a lane ends where others of its warp meet");
  t->warp->alive--;
  machine_block *block = t->block;
  block->alive--;
  block->idle = 0;
  if (block->alive && block->here == block->alive) end_block_meeting(block);
  t->next->previous = t->previous;
  t->previous->next = t->next;
  if (block->alive) go_to(t->next);
  void *nowhere;
  machine_switch(&nowhere, r->caller);
  abort(); /* nobody comes back to a thread that has ended */
}

static void prepare_thread(room *r, unsigned i, unsigned count) {
  machine_thread *t = &r->threads[i];
  const unsigned after = (i + 1) % count, before = (i + count - 1) % count;
  const int backwards = r->block.index.x % 2;
  t->index = (machine_index){i, 0, 0};
  t->block = &r->block;
  t->warp = &r->block.warps[i / MACHINE_LANES];
  t->warp->alive++;
  t->next = &r->threads[backwards ? before : after];
  t->previous = &r->threads[backwards ? after : before];
  t->first_copy = t->last_copy = t->groups = 0;
  void **top = (void **)(r->stacks + (i + 1) * STACK) - 2;
  void **saved = top - WORDS_ABOVE - SAVED_WORDS;
  if ((uintptr_t)saved % 16 && SAVED_WORDS % 2 == 0) abort();
  memset(saved, 0, SAVED_WORDS * sizeof *saved);
  saved[RETURN_WORD] = (void *)(uintptr_t)start;
  t->stack_pointer = saved;
}

static void run_block(room *r, const machine_block *model, unsigned number) {
  const unsigned count = model->threads.x;
  r->block = *model;
  r->block.index = (machine_index){number, 0, 0};
  r->block.alive = count;
  for (unsigned i = 0; i < count; i++) prepare_thread(r, i, count);
  room_in_use = r;
  machine_self = &r->threads[number % 2 ? count - 1 : 0];
  machine_switch(&r->caller, machine_self->stack_pointer);
  machine_self = NULL;
}

/* ---- Grids ---------------------------------------------------------------------------------------------- */

/* Rooms are kept: there are as many as blocks were ever in flight. */
static pthread_mutex_t rooms_lock = PTHREAD_MUTEX_INITIALIZER;
static room *free_rooms;

static room *take_room(void) {
  pthread_mutex_lock(&rooms_lock);
  room *r = free_rooms;
  if (r) free_rooms = r->next;
  pthread_mutex_unlock(&rooms_lock);
  if (r) return r;
  r = calloc(1, sizeof *r);
  machine_thread *threads = calloc(MACHINE_MOST_THREADS, sizeof *threads);
  char *stacks = mmap(NULL, STACK * MACHINE_MOST_THREADS, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!r || !threads || stacks == MAP_FAILED) machine_fault("no memory for a block");
  r->threads = threads;
  r->stacks = stacks;
  return r;
}

static void give_room(room *r) {
  pthread_mutex_lock(&rooms_lock);
  r->next = free_rooms;
  free_rooms = r;
  pthread_mutex_unlock(&rooms_lock);
}

typedef struct grid {
  machine_block model;
  machine_kernel *kernel;
  const machine_arguments *arguments;
  unsigned blocks;
  atomic_uint next;
} grid;

static void *run_blocks(void *context) {
  grid *g = context;
  room *r = take_room();
  r->kernel = g->kernel;
  r->arguments = g->arguments;
  for (unsigned number; (number = atomic_fetch_add(&g->next, 1)) < g->blocks;) {
    run_block(r, &g->model, number);
  }
  give_room(r);
  return NULL;
}

void machine_launch(machine_kernel *kernel, const char *name, unsigned blocks, unsigned threads,
                    int together, const machine_arguments *arguments) {
  grid g = {.kernel = kernel, .arguments = arguments, .blocks = blocks};
  g.model.threads = (machine_index){threads, 1, 1};
  g.model.grid = (machine_index){blocks, 1, 1};
  g.model.kernel = name;
  const unsigned processors = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
  unsigned workers = together || blocks < processors ? blocks : processors;
  if (workers > MOST_BLOCKS_AT_ONCE) machine_fault("%u blocks at once are too many", workers);
  pthread_t others[MOST_BLOCKS_AT_ONCE];
  unsigned started = 1;
  for (; started < workers; started++) {
    if (pthread_create(&others[started], NULL, run_blocks, &g)) machine_fault("no thread");
  }
  run_blocks(&g);
  for (unsigned i = 1; i < started; i++) pthread_join(others[i], NULL);
}
