#include <stddef.h>
#include <string.h>

#include "cli.h"

static const char overview[] =
    "onepass: normalization and pooling at the speed of memory\n"
    "\n"
    "usage: onepass COMMAND [OPTION...]\n"
    "\n"
    "  info     what this machine and this build can do\n"
    "  check    prove every operator right on this machine\n"
    "  bench    time the operators against a memory copy\n"
    "  help     explain a command: onepass help bench\n"
    "\n"
    "  --version, --help\n"
    "\n"
    "Start with:\n"
    "  onepass bench                 how close to the speed of memory does it run here?\n"
    "  onepass check --quick         is it right here? (a few seconds)\n"
    "\n"
    "Exit status: 0 all well, 1 a result was wrong, 2 the command line was wrong.\n";

static const char info_help[] =
    "usage: onepass info [--json]\n"
    "\n"
    "Shows the version, how the library was built, the CPU with its vector level and caches,\n"
    "the number of threads, how fast memory is copied, and the GPUs.\n"
    "\n"
    "The copy speed counts bytes read and bytes written. It is the faster of memcpy and stores\n"
    "that bypass the cache, on one thread and on all of them: what `of copy` in onepass bench\n"
    "can be compared with.\n"
    "\n"
    "  --json    one JSON object\n"
    "\n"
    "The number of threads follows OMP_NUM_THREADS:\n"
    "  OMP_NUM_THREADS=1 onepass info\n";

static const char check_help[] =
    "usage: onepass check [--op NAME] [--quick | --full] [OPTION...]\n"
    "\n"
    "Runs every operator, forward and backward, in every type, on the awkward shapes above all:\n"
    "odd lengths, any axis, strided and misaligned tensors, in place, empty, NaN, Inf, tiny and\n"
    "huge values. Each result is compared with plain loops in double. Also checked: nothing "
    "around\n"
    "an output is touched, a second run and other numbers of threads give the same bits, and\n"
    "every vector level of this CPU is right.\n"
    "\n"
    "  --op NAME       l1_norm, layer_norm, avg_pool1d or all (default)\n"
    "  --quick         a few seconds\n"
    "  --full          many minutes: every variant, long rows, tensors of more than 100 MB\n"
    "  --threads N     compare 1 and N threads; default: 1, 2 and 3\n"
    "  --device NAME   cpu, cuda or auto (default)\n"
    "  --seed N        other random numbers; default 1\n"
    "  --case N        only case N of the list, as a failing case is reported\n"
    "  --json          one JSON object a line\n"
    "\n"
    "The table has a line for each operator, direction and type. `worst` is the largest error as "
    "a\n"
    "fraction of its bound: 1.00 is the most that rounding explains. `max err` is the largest "
    "error\n"
    "itself, relative where the right value is above 1. A failing case is printed with all that "
    "is\n"
    "needed to repeat it.\n"
    "\n"
    "Examples:\n"
    "  onepass check --quick\n"
    "  onepass check --op layer_norm --full\n"
    "  onepass check --quick --case 413          only that one again\n";

static const char bench_help[] =
    "usage: onepass bench [--op NAME] [--shape 1024x65535] [OPTION...]\n"
    "\n"
    "Times operators and, between the repetitions, a copy that moves the same number of bytes.\n"
    "Every result is checked against plain loops in double before it is timed. With no options:\n"
    "the three operators, forward and backward, in f32, on sizes that suit the machine.\n"
    "\n"
    "  --op NAME        l1_norm, layer_norm, avg_pool1d or all (default)\n"
    "  --shape SIZES    sizes joined by x: 1024x65535\n"
    "  --axis A         l1_norm: the axis; layer_norm: the first normalized axis. Negative counts\n"
    "                   from the end. Default -1, and -3 for layer_norm with four sizes\n"
    "  --kernel K       avg_pool1d: window length, default 8\n"
    "  --stride S       avg_pool1d: step of the window, default 1\n"
    "  --padding P      avg_pool1d: zeros on both sides, default half the kernel\n"
    "  --dtype NAME     f32 (default), f64, f16, bf16 or all\n"
    "  --dir NAME       fwd, bwd or both (default)\n"
    "  --threads N      default: OpenMP's number, see onepass info\n"
    "  --vector NAME    best (default), baseline, sse2, avx2, avx512,\n"
    "                   neon or neon_bf16\n"
    "  --device NAME    cpu, cuda or auto (default)\n"
    "  --reps N         repetitions; default: about a second's worth, at least 5\n"
    "  --json           one JSON object a line\n"
    "  -v               more columns: kernel, vector, threads, workspace\n"
    "\n"
    "Columns: `time` is the median of the repetitions; `GB/s` counts each input and each output\n"
    "once; `of copy` is the copy's time over the operator's, so 1.00 is the speed of memory; `max\n"
    "err` is the largest error, relative where the right value is above 1. Small tensors are "
    "taken\n"
    "from a set larger than the last cache, so that they come from memory, too.\n"
    "\n"
    "Examples:\n"
    "  onepass bench\n"
    "  onepass bench --op l1_norm --shape 1024x65535 --threads 1\n"
    "  onepass bench --op layer_norm --shape 16x64x256x256 --axis -3 --dir bwd\n"
    "  onepass bench --op avg_pool1d --shape 8x128x65536 --kernel 8 --stride 1 --padding 4\n"
    "  onepass bench --dtype bf16 --json > bf16.jsonl\n";

const char *help_text(const char *command) {
  if (!command || strcmp(command, "help") == 0) return overview;
  if (strcmp(command, "info") == 0) return info_help;
  if (strcmp(command, "check") == 0) return check_help;
  if (strcmp(command, "bench") == 0) return bench_help;
  return NULL;
}
