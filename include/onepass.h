/*
 * onepass: normalization and pooling at the speed of memory.
 *
 * SPDX-License-Identifier: MIT
 *
 * This header is the whole public interface and its manual. In short:
 *
 *   describe   fill in an onepass_norm or onepass_pool, and an onepass_tensor for each argument
 *   plan       onepass_plan_norm or onepass_plan_pool: checks everything once, chooses the kernel
 *   run        onepass_run: does the work on any buffers of the planned shapes, as often as needed
 *
 * or, in one call, onepass_l1_norm, onepass_layer_norm, onepass_avg_pool1d and their _backward.
 * Every other member of the two families is reached by its description.
 *
 * What holds for every function here:
 *
 *   - It returns an onepass_status, except the plain getters. When that is not ONEPASS_OK, no output
 *     has been written, and onepass_last_message() names the argument, its value and what was
 *     expected.
 *   - It never prints, exits or aborts, and keeps no pointer to anything you passed.
 *   - It may be called from any thread at any time. A plan is immutable: many threads may run one.
 *   - The same inputs give the same bits, whatever the number of threads; on a GPU, at addresses
 *     that are the same modulo 16.
 */
#ifndef ONEPASS_H
#define ONEPASS_H

#include <stddef.h>
#include <stdint.h>

#define ONEPASS_VERSION_MAJOR  0
#define ONEPASS_VERSION_MINOR  1
#define ONEPASS_VERSION_PATCH  0
#define ONEPASS_VERSION_STRING "0.1.0"
#define ONEPASS_VERSION \
  (ONEPASS_VERSION_MAJOR * 10000 + ONEPASS_VERSION_MINOR * 100 + ONEPASS_VERSION_PATCH)

#if defined(_WIN32)
#define ONEPASS_API
#else
#define ONEPASS_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version --------------------------------------------------------------------------------- */

/* The version of the library that is running, which may be newer than ONEPASS_VERSION of the
 * header. */
ONEPASS_API int onepass_version(void);
ONEPASS_API const char *onepass_version_string(void);

/* ---- Status ---------------------------------------------------------------------------------- */

typedef enum onepass_status {
  ONEPASS_OK = 0,
  ONEPASS_NULL_POINTER,      /* a required pointer is NULL */
  ONEPASS_BAD_OPERATOR,      /* unknown operator, direction or reduction */
  ONEPASS_BAD_OPTION,        /* a value in onepass_options, eps or a flag makes no sense */
  ONEPASS_BAD_DEVICE,        /* unknown device, or tensors on different devices */
  ONEPASS_BAD_DTYPE,         /* a type onepass does not know, or a mix that makes no sense */
  ONEPASS_BAD_NDIM,          /* too few or too many dimensions for the operator */
  ONEPASS_BAD_SHAPE,         /* negative or too large, or it disagrees with the other tensors */
  ONEPASS_BAD_STRIDES,       /* negative, too large, or an output that writes an element twice */
  ONEPASS_BAD_AXIS,          /* the axis is not one of the tensor's */
  ONEPASS_BAD_KERNEL,        /* pooling: kernel below 1, or no window of it fits */
  ONEPASS_BAD_WINDOW_STRIDE, /* pooling: stride below 1 */
  ONEPASS_BAD_PADDING,       /* pooling: padding negative or over half the kernel */
  ONEPASS_OVERLAP,           /* an output shares memory with another argument */
  ONEPASS_MISALIGNED,        /* a buffer's address is not a multiple of its element size */
  ONEPASS_BAD_WORKSPACE,     /* workspace NULL, misaligned or smaller than the plan needs */
  ONEPASS_OUT_OF_MEMORY,     /* no memory for a plan, a helper's workspace, or kernels on a GPU */
  ONEPASS_BAD_STREAM,        /* a stream of another device, or none at all */
  ONEPASS_CUDA_ERROR         /* the CUDA driver refused; the message has its words */
} onepass_status;

/* The enumerator's own name, such as "ONEPASS_BAD_AXIS". Never NULL. */
ONEPASS_API const char *onepass_status_name(onepass_status status);

/* What went wrong in the latest call of this thread that did not return ONEPASS_OK: one line, no
 * newline, never NULL, valid until the thread's next failing call. */
ONEPASS_API const char *onepass_last_message(void);

/* ---- Tensors: the same layout as DLPack's DLTensor, so one may be cast to the other ---------- */

#define ONEPASS_MAX_NDIM 8

enum { ONEPASS_CPU = 1, ONEPASS_CUDA = 2 }; /* onepass_device.type; DLPack's numbers */

typedef struct onepass_device {
  int32_t type;
  int32_t id;
} onepass_device;

typedef struct onepass_dtype {
  uint8_t code; /* 0: signed integer, 2: IEEE float, 4: bfloat */
  uint8_t bits;
  uint16_t lanes; /* always 1 */
} onepass_dtype;

static const onepass_dtype ONEPASS_F32 = {2, 32, 1};
static const onepass_dtype ONEPASS_F64 = {2, 64, 1};
static const onepass_dtype ONEPASS_F16 = {2, 16, 1};
static const onepass_dtype ONEPASS_BF16 = {4, 16, 1};
static const onepass_dtype ONEPASS_I64 = {0, 64, 1}; /* indices only */

typedef struct onepass_tensor {
  void *data; /* not looked at by onepass_plan_*; may be NULL there, and for tensors without
                 elements */
  onepass_device device;
  int32_t ndim; /* 1 to ONEPASS_MAX_NDIM */
  onepass_dtype dtype;
  const int64_t *shape;
  const int64_t *strides; /* in elements, not negative; NULL means compact row-major */
  uint64_t byte_offset;   /* from data to the first element */
} onepass_tensor;

/* The tensors of a call by their part in it. Leave what the call does not use NULL. Which are used:
 *
 *                      reads                                  writes
 *   norm forward       x, residual?, weight?, bias?           y, sum?, mean?, rstd?,
 *                                                             running_mean?, running_var?
 *   norm backward      x, dy, dsum?, weight?, bias?,          dx, dweight?, dbias?
 *                      mean, rstd
 *   pool forward       x                                      y, indices?
 *   pool backward      dy, and indices, or x and y            dx
 *
 * ? = may be NULL. What a member of the family has no use for must be NULL; onepass_norm_op and
 * onepass_pool_op say which those are. */
typedef struct onepass_tensors {
  const onepass_tensor *x;
  const onepass_tensor *weight;
  const onepass_tensor *bias;
  const onepass_tensor *y;
  const onepass_tensor *mean;
  const onepass_tensor *rstd;
  const onepass_tensor *dy;
  const onepass_tensor *dx;
  const onepass_tensor *dweight;
  const onepass_tensor *dbias;
  const onepass_tensor *residual;     /* added to x before anything else */
  const onepass_tensor *sum;          /* x + residual, which backward takes as its x */
  const onepass_tensor *dsum;         /* the gradient of sum, added to dx */
  const onepass_tensor *running_mean; /* read with use_running, otherwise moved on */
  const onepass_tensor *running_var;
  const onepass_tensor *indices; /* where in its plane each maximum is */
} onepass_tensors;

/* The addresses of the first elements, for onepass_run. The same names, and the same ones in use.
 */
typedef struct onepass_buffers {
  const void *x;
  const void *weight;
  const void *bias;
  void *y;
  void *mean;
  void *rstd;
  const void *dy;
  void *dx;
  void *dweight;
  void *dbias;
  const void *residual;
  void *sum;
  const void *dsum;
  void *running_mean;
  void *running_var;
  void *indices;
} onepass_buffers;

/* ---- Descriptions ---------------------------------------------------------------------------- */

typedef enum onepass_direction { ONEPASS_FORWARD = 0, ONEPASS_BACKWARD = 1 } onepass_direction;

/* d stands for what a row is divided by: the operator's norm of the row, plus eps or, with `clamp`,
 * not less than eps. A row is what one statistic is gathered over. */
typedef enum onepass_norm_op {
  /* y = x / d, the norm being mean|x| or sum|x|. In the gradient sign(0) is 0. */
  ONEPASS_L1_NORM = 0,
  /* y = (x - mean) / sqrt(variance + eps) * weight + bias. */
  ONEPASS_LAYER_NORM = 1,
  /* y = x / d, the norm being sqrt(sum x^2). Over all axes this is the Frobenius norm. */
  ONEPASS_L2_NORM = 2,
  /* y = x / sqrt(mean(x^2) + eps) * weight. */
  ONEPASS_RMS_NORM = 3,
  /* As layer_norm, over the channels of a group and all that is behind them, for each batch: x is
   * (N, C, ...), with C a multiple of `groups`; as many groups as channels are an instance norm. */
  ONEPASS_GROUP_NORM = 4,
  /* As layer_norm, over all but the channels: x is (N, C, ...). With use_running the mean and the
   * variance are running_mean and running_var. */
  ONEPASS_BATCH_NORM = 5
} onepass_norm_op;

typedef enum onepass_reduction { ONEPASS_MEAN = 0, ONEPASS_SUM = 1 } onepass_reduction;

/* What is done to y last; exact: x * Phi(x), tanh: PyTorch's approximation of it. */
typedef enum onepass_activation {
  ONEPASS_NO_ACTIVATION = 0,
  ONEPASS_RELU = 1,
  ONEPASS_GELU = 2,
  ONEPASS_GELU_TANH = 3,
  ONEPASS_SILU = 4
} onepass_activation;

/* Fields that an operator has no use for are 0.
 *
 *                axes         weight, bias        saved        also
 *   l1_norm      axis, axes   -                   -            reduction, clamp
 *   l2_norm      axis, axes   -                   rstd = 1/d   clamp
 *   layer_norm   axis, axes   as those axes       mean, rstd   residual, activation
 *   rms_norm     axis, axes   weight alone        rstd         residual, activation
 *   group_norm   -            of C                mean, rstd   groups, residual, activation, running
 *   batch_norm   -            of C                mean, rstd   running, residual, activation
 *
 * running: without use_running, running_mean and running_var, if given, become
 * (1 - momentum) * what they were + momentum * what the rows of their channel have on average, the
 * variance counted with n - 1. With use_running they are the statistic and mean and rstd, if asked for,
 * say what was used; backward then treats them as constants. */
typedef struct onepass_norm {
  onepass_norm_op op;
  onepass_direction direction;
  int32_t axis;                /* the first normalized axis; negative counts from the end */
  onepass_reduction reduction; /* l1_norm only; the others take ONEPASS_MEAN */
  double eps;                  /* in the denominator (l1, l2) or beside the variance (others) */
  int32_t axes;  /* how many axes from `axis` on; 0: to the last, but for l1_norm and l2_norm one */
  int32_t clamp; /* the denominator is max(norm, eps), as in PyTorch's normalize */
  int64_t groups;      /* group_norm */
  int32_t use_running; /* group_norm with a group a channel, batch_norm */
  double momentum;     /* of running_mean and running_var: 0 to 1 */
  onepass_activation activation;
} onepass_norm;

typedef enum onepass_pool_op {
  /* The mean of each window. The divisor is PyTorch's, see docs/numerics.md. */
  ONEPASS_AVG_POOL = 0,
  /* The largest of each window, a NaN if there is one. indices, which backward needs, tell where in
   * the input's plane it was: the first of several, the last of several NaNs, as in PyTorch. A window
   * whose elements, far apart, are all padding has -inf and no gradient. */
  ONEPASS_MAX_POOL = 1,
  /* (the sum of x^p over each window)^(1/p), as in PyTorch. Backward reads x and y. */
  ONEPASS_LP_POOL = 2
} onepass_pool_op;

/* kernel[0] belongs to the first of the pooled axes; what is behind the last one's is not looked at.
 * Fields that an operator has no use for are 0. x is (N, C, L), (N, C, H, W) or (N, C, D, H, W), or the
 * same without N. */
typedef struct onepass_pool {
  onepass_pool_op op;
  onepass_direction direction;
  int32_t spatial; /* how many of the last axes the window slides over: 1 to 3 */
  int64_t kernel[3];
  int64_t stride[3];
  int64_t padding[3]; /* on both sides, at most half the kernel; avg_pool and max_pool */
  int32_t ceil_mode;
  int32_t count_include_pad; /* avg_pool */
  int64_t dilation[3]; /* max_pool: from one element of a window to the next; 0 stands for 1 */
  int64_t divisor;     /* avg_pool: if not 0, what every sum is divided by */
  int32_t adaptive; /* avg_pool, max_pool: y's (dy's) sizes decide on the windows; all above but op,
                       direction and spatial is left 0 */
  double p;         /* lp_pool: above 0 */
} onepass_pool;

/* How long the pooled axis becomes, exactly as in PyTorch. Fails where a plan would fail. */
ONEPASS_API onepass_status onepass_pool_length(int64_t length, int64_t kernel, int64_t stride,
                                               int64_t padding, int32_t ceil_mode, int64_t *pooled);
/* The same with elements of a window `dilation` apart. */
ONEPASS_API onepass_status onepass_pool_length_dilated(int64_t length, int64_t kernel,
                                                       int64_t stride, int64_t padding,
                                                       int64_t dilation, int32_t ceil_mode,
                                                       int64_t *pooled);

/* Where a level is no faster than the one below it, as AVX-512 is for norms of other types than bf16, it has that one's
 * kernels. */
typedef enum onepass_vector_level {
  ONEPASS_VECTOR_BEST = 0,     /* what this CPU has */
  ONEPASS_VECTOR_BASELINE = 1, /* SSE2 on x86-64, NEON on AArch64 */
  ONEPASS_VECTOR_AVX2 = 2,     /* with FMA and F16C */
  ONEPASS_VECTOR_AVX512 = 3,   /* F, BW, DQ and VL */
  ONEPASS_VECTOR_NEON_BF16 = 4 /* NEON with bfloat16 conversions */
} onepass_vector_level;

/* The ways a GPU may go about a problem; docs/design.md says when the library takes which. */
typedef enum onepass_cuda_kernel {
  ONEPASS_CUDA_BEST = 0,
  ONEPASS_CUDA_WARPS = 1,   /* norm: some lanes of a warp hold a row in registers */
  ONEPASS_CUDA_BLOCKS = 2,  /* norm, forward: a block holds a row in registers and shared memory */
  ONEPASS_CUDA_RING = 3,    /* norm: a block does row after row, the next ones on their way */
  ONEPASS_CUDA_STREAM = 4,  /* norm: the blocks of a team have a slice of each of its rows */
  ONEPASS_CUDA_PASSES = 5,  /* norm: rows are read twice, once for their sums */
  ONEPASS_CUDA_COLUMNS = 6, /* norm: lanes run across rows whose elements are far apart */
  ONEPASS_CUDA_STRIDED = 7, /* norm, pool: any strides, element by element */
  ONEPASS_CUDA_WINDOWS = 8, /* pool: dense lines and planes, neighbouring outputs a thread */
  ONEPASS_CUDA_POINTS = 9,  /* pool: lines of averages that lie back to back, output by output */
  ONEPASS_CUDA_KERNEL_COUNT
} onepass_cuda_kernel;

/* How to run, as opposed to what. All zeros, or NULL in place of the struct, is the best choice. */
typedef struct onepass_options {
  int32_t threads;      /* CPU threads at most; 0: OpenMP's number at the time of planning */
  int32_t vector_level; /* an onepass_vector_level; one this CPU lacks is ONEPASS_BAD_OPTION */
  int32_t reference;   /* nonzero: the plain loops in double that the fast kernels are checked with;
                        CPU only, slow, and outputs may be f64 whatever the inputs are */
  int32_t cuda_kernel; /* an onepass_cuda_kernel, to try one where the library would take another;
                          one that cannot do the problem is ONEPASS_BAD_OPTION */
} onepass_options;

/* ---- Plan and run ---------------------------------------------------------------------------- */

typedef struct onepass_plan onepass_plan;

/* Check the description against the tensors and choose how to run it. On ONEPASS_OK *plan is a plan
 * that the caller destroys; otherwise *plan is NULL.
 *
 * Types: x, residual, sum, dsum, y, dy and dx have one type: f32, f64, f16 or bf16. weight, bias,
 * dweight, dbias, running_mean and running_var have one type too: x's, or f32 with f16 and bf16. mean
 * and rstd are f64 for f64 and f32 otherwise. indices are ONEPASS_I64.
 * Shapes: residual, sum, dsum, y, dy and dx (of a norm) as x; weight, bias, dweight and dbias as the
 * normalized axes, or (C) of group_norm and batch_norm, as are running_mean and running_var; mean and
 * rstd as the remaining axes, with or without ones in place of the normalized ones, of group_norm
 * (N, groups), of batch_norm (C). indices as y.
 * Layouts: any strides are right, contiguous ones are fast. Inputs may repeat elements (stride 0);
 * outputs may not. */
ONEPASS_API onepass_status onepass_plan_norm(onepass_plan **plan, const onepass_norm *norm,
                                             const onepass_tensors *tensors,
                                             const onepass_options *options);
ONEPASS_API onepass_status onepass_plan_pool(onepass_plan **plan, const onepass_pool *pool,
                                             const onepass_tensors *tensors,
                                             const onepass_options *options);
ONEPASS_API void onepass_plan_destroy(onepass_plan *plan); /* NULL is fine */

/* Bytes of scratch memory onepass_run needs for this plan; often 0. */
ONEPASS_API size_t onepass_plan_workspace(const onepass_plan *plan);

/* Do the work. The buffers must have the planned types, shapes and strides. A norm may write in
 * place: y over x, and dx over x or dy, at the same address with the same strides; otherwise
 * outputs must not share memory with anything else. workspace is aligned to 64 bytes, at least as
 * large as onepass_plan_workspace says (NULL if that is 0), and not in use by another run at the
 * same time. Nothing is allocated.
 *
 * On a CUDA device buffers and workspace are memory of that device or managed memory, stream is a
 * CUstream (the same as a cudaStream_t) of its primary context, NULL being the default stream, and
 * the work is queued there: onepass_run returns at once and may be captured in a graph. Buffers and
 * workspace are in use until the stream has done the work. Everything is checked before anything is
 * queued; a fault while the work runs is reported by the driver, to whoever waits for the stream.
 * Which device is current does not matter and is left as it was. A stream that has been destroyed
 * cannot be told from a live one: the driver itself crashes on it. On the CPU stream is NULL. */
ONEPASS_API onepass_status onepass_run(const onepass_plan *plan, const onepass_buffers *buffers,
                                       void *workspace, size_t workspace_size, void *stream);

/* What a plan will do. Strings are the library's own and live as long as it does. */
typedef struct onepass_plan_info {
  const char *op;     /* "l1_norm", "layer_norm", "avg_pool1d", ... */
  const char *kernel; /* how: "rows", "split_rows", "columns", "dense_windows", ...; on a GPU
                         "warps", "blocks", ... as in onepass_cuda_kernel */
  const char *vector; /* "sse2", "avx2", "avx512", "neon", "neon_bf16"; "double": reference;
                         "cuda" */
  int32_t threads;    /* CPU threads that will work on it; 1 on a GPU */
  int64_t bytes;      /* inputs once plus outputs once: what must move */
  size_t workspace;   /* as onepass_plan_workspace */
  /* CUDA: the launch that does most of the work (of passes: the first one), for buffers that start
   * at multiples of 16 bytes; all 0 on the CPU. */
  int64_t grid;     /* blocks */
  int32_t block;    /* threads in a block */
  int32_t cluster;  /* blocks in a cluster; 1: no clusters */
  size_t shared;    /* bytes of dynamic shared memory in a block */
  int32_t launches; /* kernels and memory fills that one run queues */
} onepass_plan_info;
ONEPASS_API onepass_status onepass_plan_describe(const onepass_plan *plan, onepass_plan_info *info);

/* ---- One call -------------------------------------------------------------------------------- */

/* Plan and run on the tensors' own data, with the default options. Workspace, where one is needed,
 * is allocated and freed inside. Optional tensors may be NULL as in onepass_tensors. On a CUDA
 * device the work is queued on the default stream. */

ONEPASS_API onepass_status onepass_l1_norm(const onepass_tensor *x, int32_t axis,
                                           onepass_reduction reduction, double eps,
                                           const onepass_tensor *y);
ONEPASS_API onepass_status onepass_l1_norm_backward(const onepass_tensor *dy,
                                                    const onepass_tensor *x, int32_t axis,
                                                    onepass_reduction reduction, double eps,
                                                    const onepass_tensor *dx);

ONEPASS_API onepass_status onepass_layer_norm(const onepass_tensor *x, int32_t axis,
                                              const onepass_tensor *weight,
                                              const onepass_tensor *bias, double eps,
                                              const onepass_tensor *y, const onepass_tensor *mean,
                                              const onepass_tensor *rstd);
ONEPASS_API onepass_status onepass_layer_norm_backward(
    const onepass_tensor *dy, const onepass_tensor *x, int32_t axis, const onepass_tensor *weight,
    const onepass_tensor *mean, const onepass_tensor *rstd, const onepass_tensor *dx,
    const onepass_tensor *dweight, const onepass_tensor *dbias);

ONEPASS_API onepass_status onepass_avg_pool1d(const onepass_tensor *x, int64_t kernel,
                                              int64_t stride, int64_t padding, int32_t ceil_mode,
                                              int32_t count_include_pad, const onepass_tensor *y);
ONEPASS_API onepass_status onepass_avg_pool1d_backward(const onepass_tensor *dy, int64_t kernel,
                                                       int64_t stride, int64_t padding,
                                                       int32_t ceil_mode, int32_t count_include_pad,
                                                       const onepass_tensor *dx);

/* ---- This machine ---------------------------------------------------------------------------- */

typedef struct onepass_cpu_info {
  char name[64];        /* the processor's name, or "unknown" */
  const char *vector;   /* the best vector level, as in onepass_plan_info */
  int32_t threads;      /* what options.threads = 0 stands for now */
  int64_t l1, l2, last; /* bytes of data cache: of a core, of a core, of the last level */
  const char *build;    /* compiler, thread library and backends this library was built with */
} onepass_cpu_info;
ONEPASS_API onepass_status onepass_get_cpu_info(onepass_cpu_info *info);

/* How many CUDA devices there are. If none, or no driver, or a build without CUDA: *count is 0, the
 * status is ONEPASS_BAD_DEVICE, and the message is "no CUDA device: <reason>". */
ONEPASS_API onepass_status onepass_get_cuda_count(int32_t *count);

typedef struct onepass_cuda_info {
  char name[64];
  int32_t major, minor; /* compute capability; onepass needs 8.0 */
  int32_t multiprocessors;
  int32_t driver; /* the CUDA version the driver speaks: 13000 is 13.0 */
  int64_t memory; /* bytes on the device */
  int64_t l2;     /* bytes of second-level cache */
  int64_t shared; /* bytes of shared memory a block may have */
} onepass_cuda_info;
ONEPASS_API onepass_status onepass_get_cuda_info(int32_t device, onepass_cuda_info *info);

#ifdef __cplusplus
}
#endif
#endif
