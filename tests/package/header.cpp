// The header is plain C, and good C++11 too: it compiles without a warning and links as C.
#include <onepass.h>

#include <cstdio>
#include <cstring>

int main() {
  float x[4] = {1, -1, 3, -3}, y[4];
  const int64_t shape[1] = {4};
  const onepass_tensor from = {x, {ONEPASS_CPU, 0}, 1, ONEPASS_F32, shape, nullptr, 0};
  const onepass_tensor to = {y, {ONEPASS_CPU, 0}, 1, ONEPASS_F32, shape, nullptr, 0};
  if (onepass_l1_norm(&from, 0, ONEPASS_MEAN, 0, &to) != ONEPASS_OK) {
    std::fprintf(stderr, "%s\n", onepass_last_message());
    return 1;
  }
  const float right[4] = {0.5F, -0.5F, 1.5F, -1.5F};
  return std::memcmp(y, right, sizeof y) == 0 ? 0 : 1;
}
