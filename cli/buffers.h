/* Memory, random numbers, and elements of every type as doubles. */
#ifndef ONEPASS_CLI_BUFFERS_H
#define ONEPASS_CLI_BUFFERS_H

#include <onepass.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At least one byte, aligned to a page; NULL when there is none. Released with free. */
void *allocate_bytes(int64_t bytes);

/* Random bytes. */
void fill_bytes(void *data, int64_t bytes, uint64_t seed, int32_t threads);

/* What may still be allocated without swapping or hitting the limit of a container. */
int64_t available_memory(void);

/* "1.5 GiB" */
void format_bytes(char *text, size_t size, double bytes);

/* The types in the order of dtype_choices: f32, f64, f16, bf16. */
enum { DTYPES = 4 };
extern const char *const dtype_choices[]; /* ends with "all", NULL */
onepass_dtype dtype_at(int index);
const char *dtype_name(onepass_dtype dtype);
int64_t dtype_size(onepass_dtype dtype);
bool dtype_equal(onepass_dtype a, onepass_dtype b);

/* count elements that lie stride elements apart; also of indices, which are ONEPASS_I64. */
void load_elements(onepass_dtype dtype, const void *from, int64_t stride, int64_t count,
                   double *to);
void store_element(onepass_dtype dtype, void *to, double value);

/* A number that depends on the seed and the index alone; well mixed. */
uint64_t random_bits(uint64_t seed, uint64_t index);

/* About normal, mean 0 and deviation 1, never beyond 3.5. */
double random_normal(uint64_t seed, uint64_t index);

/* count contiguous elements of the given mean and deviation. */
typedef struct distribution {
  double mean, deviation;
} distribution;
void fill_random(onepass_dtype dtype, void *data, int64_t count, distribution distribution,
                 uint64_t seed, int32_t threads);

#endif
