/* What bad input gives: a status for programs, a message for people, and untouched outputs. */
#include <onepass.h>
#include <stdio.h>

enum { ROWS = 2, COLUMNS = 6, UNTOUCHED = -1 };

static const int64_t shape[] = {ROWS, COLUMNS};
static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];

static onepass_tensor tensor(void *data, const int64_t *sizes) {
  return (onepass_tensor){
      .data = data, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = ONEPASS_F32, .shape = sizes};
}

/* Print what a call gave; 1 if it is not what was expected or if an output was written. */
static int show(const char *what, onepass_status status, onepass_status expected) {
  printf("%s\n  %s\n  %s\n", what, onepass_status_name(status), onepass_last_message());
  int wrong = status != expected;
  for (int i = 0; i < ROWS * COLUMNS; i++) wrong |= y[i] != UNTOUCHED;
  return wrong;
}

int main(void) {
  const onepass_tensor in = tensor(x, shape), out = tensor(y, shape);
  for (int i = 0; i < ROWS * COLUMNS; i++) {
    x[i] = 1;
    y[i] = UNTOUCHED;
  }

  int wrong = show("an axis that is not there", onepass_l1_norm(&in, 2, ONEPASS_MEAN, 0, &out),
                   ONEPASS_BAD_AXIS);

  const int64_t narrow[] = {ROWS, COLUMNS - 1};
  const onepass_tensor too_narrow = tensor(y, narrow);
  wrong |= show("an output of another shape",
                onepass_layer_norm(&in, -1, NULL, NULL, 1e-5, &too_narrow, NULL, NULL),
                ONEPASS_BAD_SHAPE);

  onepass_tensor wide = out;
  wide.dtype = ONEPASS_F64;
  wrong |= show("an output of another type", onepass_l1_norm(&in, -1, ONEPASS_MEAN, 0, &wide),
                ONEPASS_BAD_DTYPE);

  wrong |= show("no output", onepass_l1_norm(&in, -1, ONEPASS_MEAN, 0, NULL), ONEPASS_NULL_POINTER);

  wrong |= show("padding of more than half the kernel",
                onepass_avg_pool1d(&in, 3, 1, 2, 0, 1, &out), ONEPASS_BAD_PADDING);

  onepass_tensor gpu = in;
  gpu.device = (onepass_device){ONEPASS_CUDA, 0};
  wrong |= show("an input on a GPU, an output on the CPU",
                onepass_l1_norm(&gpu, -1, ONEPASS_MEAN, 0, &out), ONEPASS_BAD_DEVICE);
  return wrong;
}
