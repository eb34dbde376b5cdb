/* LayerNorm of a matrix with one call: the shortest program that uses onepass. */
#include <math.h>
#include <onepass.h>
#include <stdio.h>

int main(void) {
  float x[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}}, y[2][4];
  const int64_t shape[] = {2, 4};
  const onepass_device cpu = {ONEPASS_CPU, 0};
  const onepass_tensor in = {x, cpu, 2, ONEPASS_F32, shape, NULL, 0};
  const onepass_tensor out = {y, cpu, 2, ONEPASS_F32, shape, NULL, 0};
  if (onepass_layer_norm(&in, -1, NULL, NULL, 1e-5, &out, NULL, NULL) != ONEPASS_OK) {
    fprintf(stderr, "%s\n", onepass_last_message());
    return 1;
  }
  for (int i = 0; i < 2; i++)
    printf("%5.2f %5.2f %5.2f %5.2f\n", y[i][0], y[i][1], y[i][2], y[i][3]);

  /* The deviations of 1, 2, 3, 4 from their mean, over their standard deviation, sqrt(1.25). The
   * second row is ten times the first, so it is the same but for eps. */
  for (int i = 0; i < 2; i++) {
    for (int j = 0; j < 4; j++) {
      if (fabs(y[i][j] - (j - 1.5) / sqrt(1.25)) > 1e-4) return 1;
    }
  }
  return 0;
}
