/*
 * Which kernel a GPU that need not be here takes for a normalization, by name: for the problems that are measured, and for
 * others that show where the choice changes; and which kernels refuse what.
 *
 * SPDX-License-Identifier: MIT
 */
#include "launch_norms.h"

/* The shapes that onepass is measured with, on an H200: f32 and bf16. A measurement that calls for
 * another kernel changes its line. */
static const struct {
  bool layer_norm;
  int64_t rows, n;
  const char *forward[2], *backward[2];
} measured[] = {
    {false, 32768, 65535, {"blocks", "blocks"}, {"stream", "stream"}},
    {true, 16, 4194304, {"stream", "stream"}, {"passes", "passes"}},
    {true, 1048576, 128, {"warps", "warps"}, {"warps", "warps"}},
    {true, 32768, 1024, {"blocks", "blocks"}, {"ring", "ring"}},
    {true, 16384, 4096, {"blocks", "blocks"}, {"ring", "ring"}},
    {true, 16384, 4095, {"blocks", "blocks"}, {"ring", "ring"}},
    {true, 8192, 8192, {"blocks", "blocks"}, {"ring", "ring"}},
    {true, 4096, 16384, {"blocks", "blocks"}, {"stream", "stream"}},
    {true, 2048, 65536, {"stream", "stream"}, {"stream", "stream"}},
    {true, 256, 1048576, {"stream", "stream"}, {"stream", "stream"}},
};

static const struct {
  int gpu;
  norm_case of;
  const char *kernel;
} others[] = {
    {H200, {true, false, F32, EVERYTHING, COMPACT, 1, 1}, "warps"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 1, 4096}, "blocks"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 1, 16384}, "blocks"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 1, 16388}, "passes"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 15, 65536}, "passes"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 16, 65536}, "stream"},
    {H200, {true, false, BF16, EVERYTHING, COMPACT, 1, 65536}, "passes"},
    {H200, {true, true, F32, EVERYTHING, COMPACT, 2, 65536}, "passes"},
    {H200, {true, true, F32, EVERYTHING, COMPACT, 3, 65536}, "stream"},
    {H200, {true, true, F32, EVERYTHING, COMPACT, 2, 65537}, "stream"},
    {H200, {true, true, BF16, EVERYTHING, COMPACT, 1, 65536}, "stream"},
    {H200, {false, false, BF16, 0, COMPACT, 64, 32768}, "blocks"},
    {H200, {false, false, BF16, 0, COMPACT, 31, 65536}, "passes"},
    {H200, {false, false, BF16, 0, COMPACT, 32, 65536}, "stream"},
    {H200, {false, false, F32, 0, COMPACT, 47, 65536}, "passes"},
    {H200, {false, false, F32, 0, COMPACT, 48, 65536}, "stream"},
    {H200, {false, true, BF16, 0, COMPACT, 1, 16384}, "passes"},
    {H200, {false, true, F32, 0, COMPACT, 31, 65536}, "passes"},
    {H200, {false, true, F32, 0, COMPACT, 32, 65536}, "stream"},
    {H200, {false, true, F32, 0, COMPACT, 7, 65537}, "passes"},
    {H200, {false, true, F32, 0, COMPACT, 8, 65537}, "stream"},
    {H200, {false, false, F64, 0, COMPACT, 1, 1000000}, "passes"},
    {H200, {false, false, F64, 0, COMPACT, 60, 65536}, "stream"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 1, (int64_t)1 << 31}, "passes"},
    {H200, {true, false, BF16, EVERYTHING, COMPACT, 104, 20001}, "passes"},
    {H200, {true, false, BF16, EVERYTHING, COMPACT, 105, 20001}, "stream"},
    /* Copies of weights for so many rows only; what has no weights starts anywhere without them. */
    {H200, {true, false, F32, EVERYTHING, COMPACT, 698, 3001}, "ring"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 699, 3001}, "blocks"},
    {H200, {true, false, BF16, EVERYTHING, COMPACT, 349, 3001}, "ring"},
    {H200, {true, false, BF16, EVERYTHING, COMPACT, 350, 3001}, "blocks"},
    {H200, {false, false, F32, 0, COMPACT, 1, 4095}, "blocks"},
    {H200, {false, false, BF16, 0, COMPACT, 16384, 9001}, "blocks"},
    {H200, {false, false, F64, 0, COMPACT, 16384, 1023}, "blocks"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 256, 1048575}, "passes"},
    {H200, {true, false, F32, EVERYTHING, APART, 16384, 4095}, "passes"},
    {H200, {false, false, F32, 0, ACROSS, 65536, 64}, "columns"},
    {H200, {false, true, F16, 0, ACROSS_ODD, 65536, 64}, "columns"},
    {H200, {true, false, F32, EVERYTHING, ACROSS, 65536, 64}, "columns"},
    {H200, {true, true, F32, EVERYTHING, ACROSS, 65536, 64}, "strided"},
    {H200, {true, false, F32, SAVED | LENGTHS, COMPACT, 32768, 65535}, "blocks"},
    {H200, {true, false, F32, SAVED | LENGTHS, COMPACT, 4096, 4095}, "blocks"},
    {H200, {true, true, F32, SAVED | LENGTHS, COMPACT, 32768, 65535}, "stream"},
    {H200, {false, false, F32, 0, SPREAD, 4096, 4096}, "strided"},
    {H200, {true, false, F32, EVERYTHING, SPREAD_SCALE, 4096, 4096}, "strided"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 0, 4096}, "strided"},
    {H200, {true, false, F32, EVERYTHING, COMPACT, 4096, 0}, "strided"},
    {A100, {true, false, F32, EVERYTHING, COMPACT, 4096, 16384}, "blocks"},
    {A100, {true, false, F32, EVERYTHING, COMPACT, 1, 65536}, "stream"},
    {A100,
     {true, false, F32, EVERYTHING, COMPACT, 16, 1048576},
     "passes"}, /* by chunks from 9.0 on */
    {H200, {true, false, F32, EVERYTHING, COMPACT, 16, 2097152}, "stream"},
    {H200, {true, true, BF16, WEIGHT | DWEIGHT | ROOTS, COMPACT, 4096, 16384}, "ring"},
    {H200, {true, true, BF16, EVERYTHING, COMPACT, 4096, 16384}, "stream"},
    {SMALL, {true, true, F32, EVERYTHING, COMPACT, 16384, 4096}, "ring"},
    {B200, {true, false, BF16, EVERYTHING, COMPACT, 4096, 16384}, "blocks"},
    {DESKTOP, {true, false, BF16, EVERYTHING, COMPACT, 4096, 16384}, "blocks"},
};

static bool is_best_for_some[ONEPASS_CUDA_KERNEL_COUNT];

static void expect_kernel(int gpu_index, norm_case of, const char *kernel) {
  norm_trial trial = {.of = of, .on = &gpus[gpu_index]}, *t = &trial;
  make_norm(t);
  if (!EXPECT(choose_norm(t), "%s", describe_norm(t))) return;
  EXPECT(strcmp(kernel_name(t->launch.kernel), kernel) == 0, "%s: %s", kernel, describe_norm(t));
  is_best_for_some[t->launch.kernel] = true;
}

static void test_known_problems_have_known_kernels(void) {
  for (int i = 0; i < COUNT(measured); i++) {
    for (int half = 0; half < 2; half++) {
      norm_case of = {measured[i].layer_norm, false,        half ? BF16 : F32, EVERYTHING, COMPACT,
                      measured[i].rows,       measured[i].n};
      expect_kernel(H200, of, measured[i].forward[half]);
      of.backward = true;
      expect_kernel(H200, of, measured[i].backward[half]);
    }
  }
  for (int i = 0; i < COUNT(others); i++) {
    expect_kernel(others[i].gpu, others[i].of, others[i].kernel);
  }
}

/* Backward, by how many threads there are at once. */
static void test_known_rings_have_known_widths(void) {
  static const struct {
    int64_t rows, n;
    int type;
    bool broad;
    int32_t block;
    int64_t grid;
  } known[] = {
      {12608, 768, BF16, false, 64, 1056},  /* 512 threads, not 384 */
      {16384, 4096, BF16, false, 256, 264}, /* as many */
      {16384, 4095, BF16, true, 192, 256}, /* one narrow block would have a multiprocessor to itself */
      {282, 4311, BF16, false, 288, 128}, /* as one has anyway, of so few rows */
      {32768, 1024, F32, false, 96, 660},   {8192, 8192, F32, true, 512, 132},
  };
  for (int i = 0; i < COUNT(known); i++) {
    const norm_case of = {true,    true,          known[i].type, EVERYTHING,
                          COMPACT, known[i].rows, known[i].n};
    norm_trial trial = {.of = of, .on = &gpus[H200], .asked = ONEPASS_CUDA_RING}, *t = &trial;
    make_norm(t);
    if (!EXPECT(choose_norm(t), "%s", describe_norm(t))) continue;
    const onepass_norm_launch *l = &t->launch;
    EXPECT(l->broad == known[i].broad && l->block == known[i].block && l->grid == known[i].grid,
           "broad %d, %d threads, %d blocks: %s", l->broad, (int)l->block, (int)l->grid,
           describe_norm(t));
  }
}

/* Forward, a row a block: how many rows ahead one is asked for. */
static void test_known_rows_are_asked_for_ahead(void) {
  static const struct {
    bool layer_norm;
    int type, extras;
    int64_t rows, n;
    int32_t ahead;
  } known[] = {
      {true, F32, 0, 16384, 4096, 384}, /* 6 MiB, a tenth of the second-level cache */
      {true, F32, 0, 8192, 8192, 192},
      {true, BF16, FUSED, 16384, 4096, 768},
      {true, F32, 0, 32768, 1024, 1536},
      {true, BF16, 0, 16384, 4096, 768},
      {true, F64, 0, 16384, 4096, 192},
      {false, F32, 0, 16384, 4096, 384},
      {true, F32, 0, 1920, 4096, 0},     /* x and y fit there, */
      {true, F32, 0, 1921, 4096, 384},   /* and no more */
      {true, F32, 0, 65536, 1020, 0},    /* rows were not measured that short */
      {true, F32, 0, 4096, 8196, 132},   /* one fills a multiprocessor */
      {true, BF16, 0, 16384, 4095, 768}, /* rows that start anywhere, */
      {true, F32, 0, 16384, 4095, 0},    /* which others lose by, */
      {false, BF16, 0, 16384, 4095, 0},
      {false, F32, 0, 8192, 8191, 192}, /* unless they wait in shared memory, too */
  };
  for (int i = 0; i < COUNT(known); i++) {
    const int extras = EVERYTHING | known[i].extras;
    const norm_case of = {known[i].layer_norm, false,     known[i].type, extras, COMPACT,
                          known[i].rows,       known[i].n};
    norm_trial trial = {.of = of, .on = &gpus[H200]}, *t = &trial;
    make_norm(t);
    if (!EXPECT(choose_norm(t), "%s", describe_norm(t))) continue;
    const onepass_norm_launch *l = &t->launch;
    EXPECT(l->kernel == ONEPASS_CUDA_BLOCKS && l->lookahead == known[i].ahead, "%d ahead: %s",
           (int)l->lookahead, describe_norm(t));
  }
}

/* Forward, rows that a team of blocks has: by chunks or in slices, and how many blocks. */
static void test_known_rows_have_known_teams(void) {
  static const struct {
    int type;
    int extras;
    int64_t rows, n;
    bool tide;
    int32_t team;
    int64_t grid;
  } known[] = {
      {F32, EVERYTHING, 2048, 65536, true, 3, 132},
      {F32, EVERYTHING, 396, 17408, true, 1, 132},  /* a block has three, */
      {F32, EVERYTHING, 395, 17408, true, 2, 132},  /* or two blocks have three, */
      {F32, EVERYTHING, 197, 17408, false, 3, 132}, /* or slices begin sooner */
      {F32, EVERYTHING, 1000, 26112, true, 1, 132}, /* two rows fit, */
      {F32, EVERYTHING, 1000, 26116, true, 2, 132}, /* and no more */
      {F32, EVERYTHING, 1000, 104448, true, 4, 132},
      {F32, EVERYTHING, 1000, 104452, false, 13, 130},
      {F32, EVERYTHING, 1000, 104450, false, 16, 128}, /* it does not take whole packs alone */
      {F32, EVERYTHING, 16, 4194304, true, 132, 132},  /* slices are not as long */
      {F32, 0, 2048, 65536, true, 3, 132},
      {BF16, EVERYTHING, 2048, 65536, true, 1, 128}, /* all have sixteen */
      {BF16, EVERYTHING, 140, 40000, true, 1, 70},
      {BF16, EVERYTHING, 131, 40000, false, 3, 132},
      {BF16, EVERYTHING, 132, 131072, true, 2, 132},
      {BF16, EVERYTHING, 1024, 262144, true, 6, 132},
      {BF16, 0, 4096, 65536, true, 2, 132},
  };
  for (int i = 0; i < COUNT(known); i++) {
    const norm_case of = {true,    false,         known[i].type, known[i].extras,
                          COMPACT, known[i].rows, known[i].n};
    norm_trial trial = {.of = of, .on = &gpus[H200]}, *t = &trial;
    make_norm(t);
    if (!EXPECT(choose_norm(t), "%s", describe_norm(t))) continue;
    const onepass_norm_launch *l = &t->launch;
    EXPECT(l->kernel == ONEPASS_CUDA_STREAM && l->tide == known[i].tide &&
               l->team == known[i].team && l->grid == known[i].grid,
           "tide %d, teams of %d, %d blocks: %s", l->tide, (int)l->team, (int)l->grid,
           describe_norm(t));
    /* Chunks arrive faster by whole lines. */
    EXPECT(l->team == 1 || l->slice * t->size % 128 == 0, "%d: %s", (int)l->slice,
           describe_norm(t));
  }
}

/* Few rows that one block has write dweight and dbias at once; with more, another launch adds up the parts. */
static void test_few_rows_have_one_block(void) {
  static const struct {
    int64_t rows, n;
    bool alone;
  } known[] = {
      {2048, 1, true},
      {2049, 1, false}, /* 1024 threads with two rows each */
      {16, 145, true},
      {17, 145, false}, /* a warp has a row, with several elements a lane, of a block of 512 */
      {64, 17, true},
      {65, 17, false}, /* two rows a warp of 1024 threads */
  };
  for (int i = 0; i < COUNT(known); i++) {
    for (int half = 0; half < 2; half++) {
      const norm_case of = {true,    true,          half ? BF16 : F32, EVERYTHING,
                            COMPACT, known[i].rows, known[i].n};
      norm_trial trial = {.of = of, .on = &gpus[H200]}, *t = &trial;
      make_norm(t);
      if (!EXPECT(choose_norm(t), "%s", describe_norm(t))) continue;
      const onepass_norm_launch *l = &t->launch;
      EXPECT(l->kernel == ONEPASS_CUDA_WARPS && (l->grid == 1) == known[i].alone &&
                 l->direct == known[i].alone && l->launches == (known[i].alone ? 1 : 2),
             "%d blocks, %d launches: %s", (int)l->grid, (int)l->launches, describe_norm(t));
    }
  }
}

/* ---- Kernels that were asked for and cannot do it -------------------------------------------- */

static void test_a_kernel_that_cannot_do_it_is_refused(void) {
  static const struct {
    int gpu;
    norm_case of;
    onepass_cuda_kernel asked;
  } refused[] = {
      {H200, {true, false, F32, 0, COMPACT, 1000, 513}, ONEPASS_CUDA_WARPS},
      {H200, {true, false, F32, 0, COMPACT, 1000, 100000}, ONEPASS_CUDA_BLOCKS},
      {H200, {true, false, F64, 0, COMPACT, 1000, 4095}, ONEPASS_CUDA_BLOCKS},
      {H200, {true, true, F32, 0, COMPACT, 1000, 4096}, ONEPASS_CUDA_BLOCKS},
      {H200, {true, false, F32, 0, COMPACT, 1000, 16384}, ONEPASS_CUDA_RING},
      {H200, {true, false, F32, 0, APART, 1000, 4095}, ONEPASS_CUDA_RING},
      {H200, {true, false, F32, 0, COMPACT, 1000, 16}, ONEPASS_CUDA_STREAM},
      {H200, {true, false, F32, 0, COMPACT, 4, (int64_t)1 << 28}, ONEPASS_CUDA_STREAM},
      {A100, {true, false, F32, EVERYTHING, COMPACT, 16, 1048576}, ONEPASS_CUDA_STREAM},
      {H200, {true, false, F64, EVERYTHING, COMPACT, 16, 2097152}, ONEPASS_CUDA_STREAM},
      {H200, {true, false, F32, 0, COMPACT, 1000, 4096}, ONEPASS_CUDA_COLUMNS},
      {H200, {true, true, F32, DWEIGHT, ACROSS, 1000, 4096}, ONEPASS_CUDA_COLUMNS},
      {H200, {false, false, F32, 0, COMPACT, 1000, 4096}, ONEPASS_CUDA_COLUMNS},
      {H200, {false, false, F32, 0, SPREAD, 1000, 100}, ONEPASS_CUDA_WARPS},
      {H200, {false, false, F32, 0, SPREAD, 1000, 4096}, ONEPASS_CUDA_BLOCKS},
      {H200, {false, false, F32, 0, SPREAD, 1000, 4096}, ONEPASS_CUDA_RING},
      {H200, {false, false, F32, 0, SPREAD, 1000, 65536}, ONEPASS_CUDA_STREAM},
      {H200, {false, false, F32, 0, SPREAD, 1000, 65536}, ONEPASS_CUDA_PASSES},
      {H200, {true, false, F32, WEIGHT, SPREAD_SCALE, 1000, 65536}, ONEPASS_CUDA_PASSES},
      {H200, {true, false, F32, 0, COMPACT, 0, 4096}, ONEPASS_CUDA_PASSES},
      {H200, {true, false, F32, 0, COMPACT, 1000, 0}, ONEPASS_CUDA_BLOCKS},
      {H200, {true, false, F32, 0, COMPACT, 1000, 4096}, ONEPASS_CUDA_WINDOWS},
  };
  for (int i = 0; i < COUNT(refused); i++) {
    norm_trial t = {.of = refused[i].of, .on = &gpus[refused[i].gpu], .asked = refused[i].asked};
    make_norm(&t);
    EXPECT(!choose_norm(&t), "%s", describe_norm(&t));
  }
}

/* ---- Names ----------------------------------------------------------------------------------- */

static void test_kernels_say_their_names(void) {
  static const char *const names[ONEPASS_CUDA_KERNEL_COUNT] = {
      "best",   "warps",   "blocks",  "ring",    "stream",
      "passes", "columns", "strided", "windows", "points"};
  for (int i = 0; i < ONEPASS_CUDA_KERNEL_COUNT; i++) {
    EXPECT_TEXT(onepass_cuda_kernel_name((onepass_cuda_kernel)i), names[i]);
  }
}

/* Windows and points are for pools. */
static void test_each_rung_is_the_best_of_some_problem(void) {
  for (int i = ONEPASS_CUDA_WARPS; i < ONEPASS_CUDA_WINDOWS; i++) {
    EXPECT(is_best_for_some[i], "%s", onepass_cuda_kernel_name((onepass_cuda_kernel)i));
  }
}

static void test_the_build_says_whether_it_has_the_backend(void) {
  const char *wanted = onepass_cuda_is_built() ? ", CUDA" : ", CPU only";
  onepass_cpu_info info;
  EXPECT_OK(onepass_get_cpu_info(&info));
  EXPECT(strstr(info.build, wanted) != NULL, "%s", info.build);
}

int main(void) {
  test_known_problems_have_known_kernels();
  test_known_rings_have_known_widths();
  test_known_rows_are_asked_for_ahead();
  test_known_rows_have_known_teams();
  test_few_rows_have_one_block();
  test_a_kernel_that_cannot_do_it_is_refused();
  test_kernels_say_their_names();
  test_each_rung_is_the_best_of_some_problem();
  test_the_build_says_whether_it_has_the_backend();
  return expect_report("test_launch_cuda_known");
}
