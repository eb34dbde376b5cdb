/* What a user's first program may look like: normalize two rows and look at the answer. */
#include <math.h>
#include <onepass.h>
#include <stdio.h>

int main(void) {
  float x[2][3] = {{1, -2, 3}, {4, 4, -4}}, y[2][3];
  const float right[2][3] = {{0.5f, -1.0f, 1.5f}, {1, 1, -1}};
  const int64_t shape[2] = {2, 3};
  const onepass_tensor from = {x, {ONEPASS_CPU, 0}, 2, ONEPASS_F32, shape, NULL, 0};
  const onepass_tensor to = {y, {ONEPASS_CPU, 0}, 2, ONEPASS_F32, shape, NULL, 0};
  if (onepass_version() < ONEPASS_VERSION) {
    fprintf(stderr, "library %s, header %s\n", onepass_version_string(), ONEPASS_VERSION_STRING);
    return 1;
  }
  if (onepass_l1_norm(&from, -1, ONEPASS_MEAN, 0, &to) != ONEPASS_OK) {
    fprintf(stderr, "onepass_l1_norm: %s\n", onepass_last_message());
    return 1;
  }
  for (int i = 0; i < 6; i++) {
    if (fabsf(y[i / 3][i % 3] - right[i / 3][i % 3]) > 1e-6f) {
      fprintf(stderr, "element %d is %g\n", i, (double)y[i / 3][i % 3]);
      return 1;
    }
  }
  printf("onepass %s: right\n", onepass_version_string());
  return 0;
}
