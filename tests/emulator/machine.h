/*
 * A GPU made of the CPU, so that the kernels can be run where there is none: each thread of a block is a
 * coroutine, each block in flight an operating-system thread. It is slow, and it is mean: threads take turns
 * forwards in one block and backwards in the next, copies that need not have arrived have not, and lanes that
 * meet in different operations end the program.
 *
 * What it cannot show: how fast anything is, and races between threads that would need to run at once.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef EMULATOR_MACHINE_H
#define EMULATOR_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  MACHINE_LANES = 32,
  MACHINE_MOST_THREADS = 1024, /* of a block */
  MACHINE_MOST_COPIES = 256,   /* of a thread, on their way to shared memory */
  MACHINE_SHARED_BYTES = 227 * 1024,
  MACHINE_MOST_ARGUMENTS = 4096
};

typedef struct machine_index {
  unsigned x, y, z;
} machine_index;

typedef struct machine_copy {
  char *to;
  const char *from;
  int valid;
  unsigned group;
} machine_copy;

/* Lanes leave a value, and find those of all others when the last one has come. A lane can be one meeting
 * ahead of the slowest, so there are two sets. */
typedef struct machine_warp {
  unsigned long meetings;
  unsigned here, alive;
  unsigned operation;
  unsigned long long values[2][MACHINE_LANES];
} machine_warp;

typedef struct machine_block {
  machine_index index, threads, grid;
  unsigned alive, here;
  unsigned long meetings;
  int said_so[2];     /* in this meeting, or the one before */
  unsigned long idle; /* turns since somebody got further */
  machine_warp warps[MACHINE_MOST_THREADS / MACHINE_LANES];
  const char *kernel;
} machine_block;

typedef struct machine_thread {
  machine_index index;
  machine_block *block;
  machine_warp *warp;
  struct machine_thread *next, *previous;
  void *stack_pointer;
  unsigned first_copy, last_copy, groups;
  machine_copy copies[MACHINE_MOST_COPIES];
} machine_thread;

/* Who runs on this thread of the operating system. */
extern __thread machine_thread *machine_self;

/* ---- For kernels ---------------------------------------------------------------------------------------- */

int machine_sync_block(int so); /* whether any thread said so */
/* All 32 lanes: `value` of every one, by lane. `operation` must be the same for all. */
const unsigned long long *machine_meet(unsigned operation, unsigned long long value);
void machine_take_turns(void); /* somebody else's turn */
void machine_got_further(void);

void machine_copy_async(void *to, const void *from, int valid);
void machine_commit_copies(void);
void machine_wait_for_all_but(unsigned groups);

/* Prints what is wrong, in which kernel, block and thread, and ends the program. */
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void machine_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- For the driver ------------------------------------------------------------------------------------- */

/* Kernels take one structure by value, of at most MACHINE_MOST_ARGUMENTS bytes. */
typedef struct machine_arguments {
  char bytes[MACHINE_MOST_ARGUMENTS];
} machine_arguments;
typedef void machine_kernel(machine_arguments);

/* All blocks, and waits. `together`: all of them are in flight at once. */
void machine_launch(machine_kernel *kernel, const char *name, unsigned blocks, unsigned threads,
                    int together, const machine_arguments *arguments);

#ifdef __cplusplus
}
#endif

#endif
