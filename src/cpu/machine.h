/* What this CPU is: its vector level, its caches, its name. Looked up once. */
#ifndef ONEPASS_CPU_MACHINE_H
#define ONEPASS_CPU_MACHINE_H

#include "onepass.h"

typedef struct onepass_machine {
  char name[64];
  onepass_vector_level level; /* the best there is */
  int64_t l1, l2, last;       /* data cache bytes: of a core, of a core, of the last level */
} onepass_machine;

const onepass_machine *onepass_this_machine(void);

/* "neon", "sse2", "avx2", ... */
const char *onepass_vector_name(onepass_vector_level level);

/* Turn the level an option asks for into one this CPU has. */
onepass_status onepass_choose_level(int32_t asked, onepass_vector_level *level);

#endif
