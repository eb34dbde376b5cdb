/*
 * Drives the fuzz target where there is no libFuzzer: pseudo-random bytes, and mutations of inputs
 * that came before, the same ones every time. A failing input is written to a file.
 *
 *   fuzz_plan_standalone [ITERATIONS [SEED]]    or    fuzz_plan_standalone FILE...
 *
 * SPDX-License-Identifier: MIT
 */
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 1024, KEPT = 64 };

static uint8_t input[LONGEST];
static size_t input_size;
static uint64_t state;

static uint64_t next_random(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state * 0x2545F4914F6CDD1Du >> 16;
}

static void save_input(int signal_number) {
  FILE *file = fopen("fuzz-failure.bin", "wb");
  if (file != NULL) {
    fwrite(input, 1, input_size, file);
    fclose(file);
  }
  fprintf(stderr, "signal %d: the input is in fuzz-failure.bin\n", signal_number);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static void random_input(void) {
  input_size = next_random() % (next_random() % 4 ? 96 : LONGEST);
  for (size_t i = 0; i < input_size; i++) input[i] = (uint8_t)next_random();
}

static void mutate_input(void) {
  for (uint64_t changes = 1 + next_random() % 4; changes > 0 && input_size > 0; changes--) {
    size_t at = next_random() % input_size;
    switch (next_random() % 4) {
      case 0:
        input[at] = (uint8_t)next_random();
        break;
      case 1:
        input[at] ^= (uint8_t)(1u << next_random() % 8);
        break;
      case 2:
        input[at] = (uint8_t)(input[at] + next_random() % 7 - 3);
        break;
      default: /* take a byte out */
        memmove(input + at, input + at + 1, input_size - at - 1);
        input_size--;
        break;
    }
  }
}

static int run_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "cannot read %s\n", path);
    return 2;
  }
  input_size = fread(input, 1, LONGEST, file);
  fclose(file);
  LLVMFuzzerTestOneInput(input, input_size);
  printf("%s: no crash\n", path);
  return 0;
}

static int run_many(long iterations) {
  static uint8_t kept[KEPT][LONGEST];
  static size_t kept_size[KEPT];
  for (long i = 0; i < iterations; i++) {
    size_t slot = next_random() % KEPT;
    if (i < KEPT || next_random() % 3 == 0) {
      random_input();
    } else {
      input_size = kept_size[slot];
      memcpy(input, kept[slot], input_size);
      mutate_input();
    }
    LLVMFuzzerTestOneInput(input, input_size);
    kept_size[slot] = input_size;
    memcpy(kept[slot], input, input_size);
  }
  printf("%ld inputs, no crash\n", iterations);
  return 0;
}

int main(int argc, char **argv) {
  char *end = NULL;
  long iterations = argc > 1 ? strtol(argv[1], &end, 10) : 20000;
  signal(SIGSEGV, save_input);
  signal(SIGABRT, save_input);
  signal(SIGFPE, save_input);
  state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 88172645463325252u;
  if (argc > 1 && *end != '\0') {
    int worst = 0;
    for (int i = 1; i < argc; i++) worst |= run_file(argv[i]);
    return worst;
  }
  return run_many(iterations);
}
