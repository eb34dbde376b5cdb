#define _POSIX_C_SOURCE 200809L
#include "buffers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parallel.h"

void *allocate_bytes(int64_t bytes) {
  const size_t page = 4096;
  if (bytes < 0 || (uint64_t)bytes > SIZE_MAX - page) return NULL;
  size_t size = ((size_t)bytes + page) / page * page;
  return aligned_alloc(page, size);
}

/* ---- Memory of the machine ---- */

/* The number that follows a label in a file such as /proc/meminfo; -1 when it is not there. */
static int64_t number_in_file(const char *path, const char *label) {
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  char line[256];
  int64_t number = -1;
  size_t length = strlen(label);
  while (number < 0 && fgets(line, sizeof line, file))
    if (strncmp(line, label, length) == 0 && sscanf(line + length, "%" SCNd64, &number) != 1) break;
  fclose(file);
  return number;
}

int64_t available_memory(void) {
  int64_t available = number_in_file("/proc/meminfo", "MemAvailable:");
  available =
      available >= 0 ? available * 1024 : (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  int64_t limit = number_in_file("/sys/fs/cgroup/memory.max", "");
  int64_t used = number_in_file("/sys/fs/cgroup/memory.current", "");
  if (limit >= 0 && used >= 0 && limit - used < available)
    available = limit > used ? limit - used : 0;
  return available;
}

void format_bytes(char *text, size_t size, double bytes) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 6) {
    bytes /= 1024;
    unit++;
  }
  bool whole = unit == 0 || bytes == (double)(int64_t)bytes;
  snprintf(text, size, "%.*f %s", whole ? 0 : 1, bytes, units[unit]);
}

/* ---- Types ---- */

const char *const dtype_choices[] = {"f32", "f64", "f16", "bf16", "all", NULL};

onepass_dtype dtype_at(int index) {
  const onepass_dtype dtypes[DTYPES] = {ONEPASS_F32, ONEPASS_F64, ONEPASS_F16, ONEPASS_BF16};
  return dtypes[index];
}

bool dtype_equal(onepass_dtype a, onepass_dtype b) { return a.code == b.code && a.bits == b.bits; }

const char *dtype_name(onepass_dtype dtype) {
  for (int i = 0; i < DTYPES; i++)
    if (dtype_equal(dtype, dtype_at(i))) return dtype_choices[i];
  return "unknown";
}

int64_t dtype_size(onepass_dtype dtype) { return dtype.bits / 8; }

static double bits_to_double(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t float_bits(double value) {
  float rounded = (float)value;
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  return bits;
}

static double f16_to_double(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return bits_to_double(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) return bits_to_double(sign | (exponent + 112) << 23 | fraction << 13);
  double magnitude = (double)fraction / 16777216; /* subnormal: units of 2^-24 */
  return sign ? -magnitude : magnitude;
}

/* Shift right and round to nearest, ties to even. */
static uint32_t round_off(uint32_t bits, int shift) {
  uint32_t kept = bits >> shift, rest = bits & ((1u << shift) - 1), half = 1u << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1)));
}

static uint16_t double_to_f16(double value) {
  uint32_t bits = float_bits(value);
  uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and up */
  if (magnitude >= 0x38800000) return (uint16_t)(sign | round_off(magnitude - 0x38000000, 13));
  int shift = 126 - (int)(magnitude >> 23); /* the result is subnormal */
  if (shift > 24) return (uint16_t)sign;
  return (uint16_t)(sign | round_off((magnitude & 0x7fffff) | 0x800000, shift));
}

static uint16_t double_to_bf16(double value) {
  uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)round_off(bits, 16);
}

void load_elements(onepass_dtype dtype, const void *from, int64_t stride, int64_t count,
                   double *to) {
  if (dtype_equal(dtype, ONEPASS_F32)) {
    const float *at = from;
    for (int64_t i = 0; i < count; i++) to[i] = at[i * stride];
  } else if (dtype_equal(dtype, ONEPASS_F64)) {
    const double *at = from;
    for (int64_t i = 0; i < count; i++) to[i] = at[i * stride];
  } else if (dtype_equal(dtype, ONEPASS_F16)) {
    const uint16_t *at = from;
    for (int64_t i = 0; i < count; i++) to[i] = f16_to_double(at[i * stride]);
  } else if (dtype_equal(dtype, ONEPASS_I64)) {
    const int64_t *at = from;
    for (int64_t i = 0; i < count; i++) to[i] = (double)at[i * stride];
  } else {
    const uint16_t *at = from;
    for (int64_t i = 0; i < count; i++) to[i] = bits_to_double((uint32_t)at[i * stride] << 16);
  }
}

void store_element(onepass_dtype dtype, void *to, double value) {
  if (dtype_equal(dtype, ONEPASS_F32))
    *(float *)to = (float)value;
  else if (dtype_equal(dtype, ONEPASS_F64))
    *(double *)to = value;
  else if (dtype_equal(dtype, ONEPASS_I64))
    *(int64_t *)to = (int64_t)value;
  else
    *(uint16_t *)to =
        dtype_equal(dtype, ONEPASS_F16) ? double_to_f16(value) : double_to_bf16(value);
}

/* ---- Random numbers ---- */

/* splitmix64: as a function of the index, any thread can make any part of the sequence. */
uint64_t random_bits(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* The sum of four uniform numbers, which is near enough to normal and has no logarithm in it. Each
 * has 32 bits, so that squares and sums of the result round as arbitrary numbers do. */
double random_normal(uint64_t seed, uint64_t index) {
  const double root3 = 1.7320508075688772;
  uint64_t bits = random_bits(seed, index), more = (bits ^ bits >> 29) * 0xd6e8feb86659fd93u;
  int64_t sum = (int64_t)(bits & 0xffffffff) + (int64_t)(bits >> 32) +
                (int64_t)(more & 0xffffffff) + (int64_t)(more >> 32);
  return (double)(sum - 2 * (int64_t)0xffffffff) * (root3 / 4294967296.0);
}

typedef struct fill {
  onepass_dtype dtype;
  unsigned char *data;
  distribution distribution;
  uint64_t seed;
} fill;

static void fill_random_range(const void *context, int64_t first, int64_t last) {
  const fill *fill = context;
  int64_t size = dtype_size(fill->dtype);
  for (int64_t i = first; i < last; i++) {
    double normal = random_normal(fill->seed, (uint64_t)i);
    store_element(fill->dtype, fill->data + i * size,
                  fill->distribution.mean + fill->distribution.deviation * normal);
  }
}

void fill_random(onepass_dtype dtype, void *data, int64_t count, distribution distribution,
                 uint64_t seed, int32_t threads) {
  fill fill = {dtype, data, distribution, seed};
  parallel_for(threads, count, fill_random_range, &fill);
}

static void fill_bytes_range(const void *context, int64_t first, int64_t last) {
  const fill *fill = context;
  for (int64_t i = first; i < last; i++) {
    uint64_t bits = random_bits(fill->seed, (uint64_t)i);
    memcpy(fill->data + i * 8, &bits, 8);
  }
}

void fill_bytes(void *data, int64_t bytes, uint64_t seed, int32_t threads) {
  fill fill = {.data = data, .seed = seed};
  parallel_for(threads, bytes / 8, fill_bytes_range, &fill);
  memset(fill.data + bytes / 8 * 8, 1, (size_t)(bytes % 8));
}
