/* AvgPool1d: ask how long the output is, allocate it, pool. */
#include <inttypes.h>
#include <onepass.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHANNELS = 2, LENGTH = 10, KERNEL = 4, STRIDE = 2, PADDING = 1 };

/* Pool x with the window above and print the result; 1 if that failed. */
static int pool_and_print(float x[CHANNELS][LENGTH], int32_t count_include_pad) {
  int64_t pooled;
  if (onepass_pool_length(LENGTH, KERNEL, STRIDE, PADDING, 0, &pooled) != ONEPASS_OK) return 1;
  float *y = malloc((size_t)(CHANNELS * pooled) * sizeof *y);
  if (!y) return 1;

  const onepass_device cpu = {ONEPASS_CPU, 0};
  const int64_t x_shape[] = {CHANNELS, LENGTH}, y_shape[] = {CHANNELS, pooled};
  const onepass_tensor in = {x, cpu, 2, ONEPASS_F32, x_shape, NULL, 0};
  const onepass_tensor out = {y, cpu, 2, ONEPASS_F32, y_shape, NULL, 0};
  const onepass_status status =
      onepass_avg_pool1d(&in, KERNEL, STRIDE, PADDING, 0, count_include_pad, &out);
  for (int64_t i = 0; status == ONEPASS_OK && i < CHANNELS * pooled; i++) {
    printf("%6.2f%s", y[i], (i + 1) % pooled ? "" : "\n");
  }
  free(y);
  return status != ONEPASS_OK;
}

int main(void) {
  float x[CHANNELS][LENGTH];
  for (int i = 0; i < LENGTH; i++) {
    x[0][i] = (float)(i + 1);
    x[1][i] = (float)(10 * (i + 1));
  }
  printf("a window of %d every %d of %d elements, padded by %d\n", KERNEL, STRIDE, LENGTH, PADDING);
  /* The first and the last window hold three elements and one zero of padding. */
  printf("padding counted: such a window is divided by 4\n");
  int failed = pool_and_print(x, 1);
  printf("padding not counted: it is divided by 3\n");
  failed |= pool_and_print(x, 0);
  if (failed) fprintf(stderr, "%s\n", onepass_last_message());
  return failed;
}
