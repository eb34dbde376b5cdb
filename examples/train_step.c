/* Training with LayerNorm: forward saves each row's mean and rstd, backward takes them and gives
 * the gradients of the input, the weight and the bias.
 *
 * The problem: find the x, weight and bias whose LayerNorm is `target`, by plain gradient descent
 * on the mean squared difference. */
#include <onepass.h>
#include <stdio.h>

enum { ROWS = 8, FEATURES = 16, STEPS = 200, SHOWN_EVERY = 40 };

typedef struct parameters {
  float x[ROWS][FEATURES], weight[FEATURES], bias[FEATURES];
} parameters;

static const int64_t matrix_shape[] = {ROWS, FEATURES}, row_shape[] = {FEATURES};
static const int64_t saved_shape[] = {ROWS}; /* the axes that are not normalized */

static onepass_tensor tensor(void *data, int ndim, const int64_t *shape) {
  return (onepass_tensor){
      .data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = ONEPASS_F32, .shape = shape};
}

/* The loss, and in `gradient` how it changes with each parameter; a negative number if a call
 * failed. */
static double loss_of(parameters *p, float (*target)[FEATURES], parameters *gradient) {
  float y[ROWS][FEATURES], dy[ROWS][FEATURES], mean[ROWS], rstd[ROWS];
  const onepass_tensor tx = tensor(p->x, 2, matrix_shape), ty = tensor(y, 2, matrix_shape);
  const onepass_tensor tw = tensor(p->weight, 1, row_shape), tb = tensor(p->bias, 1, row_shape);
  const onepass_tensor tmean = tensor(mean, 1, saved_shape), trstd = tensor(rstd, 1, saved_shape);
  if (onepass_layer_norm(&tx, -1, &tw, &tb, 1e-5, &ty, &tmean, &trstd) != ONEPASS_OK) return -1;

  double loss = 0;
  for (int i = 0; i < ROWS; i++) {
    for (int j = 0; j < FEATURES; j++) {
      const float off = y[i][j] - target[i][j];
      loss += (double)off * off / (ROWS * FEATURES);
      dy[i][j] = 2 * off / (ROWS * FEATURES);
    }
  }

  const onepass_tensor tdy = tensor(dy, 2, matrix_shape),
                       tdx = tensor(gradient->x, 2, matrix_shape);
  const onepass_tensor tdw = tensor(gradient->weight, 1, row_shape);
  const onepass_tensor tdb = tensor(gradient->bias, 1, row_shape);
  const onepass_status status =
      onepass_layer_norm_backward(&tdy, &tx, -1, &tw, &tmean, &trstd, &tdx, &tdw, &tdb);
  return status == ONEPASS_OK ? loss : -1;
}

static void step(parameters *p, const parameters *gradient, float rate) {
  float *value = p->x[0];
  const float *slope = gradient->x[0];
  for (int i = 0; i < ROWS * FEATURES; i++) value[i] -= rate * slope[i];
  for (int j = 0; j < FEATURES; j++) {
    p->weight[j] -= rate * gradient->weight[j];
    p->bias[j] -= rate * gradient->bias[j];
  }
}

/* Numbers between -1 and 1 that are the same everywhere, unlike those of rand(). */
static float next_number(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / (1 << 23) - 1;
}

int main(void) {
  static parameters p, gradient;
  static float target[ROWS][FEATURES];
  uint32_t state = 1;
  for (int i = 0; i < ROWS; i++) {
    for (int j = 0; j < FEATURES; j++) {
      p.x[i][j] = next_number(&state);
      target[i][j] = next_number(&state);
    }
  }
  for (int j = 0; j < FEATURES; j++) p.weight[j] = 1;

  double first = 0, loss = 0;
  for (int i = 0; i <= STEPS; i++) {
    loss = loss_of(&p, target, &gradient);
    if (loss < 0) {
      fprintf(stderr, "%s\n", onepass_last_message());
      return 1;
    }
    if (i == 0) first = loss;
    if (i % SHOWN_EVERY == 0) printf("step %3d: loss %.3f\n", i, loss);
    step(&p, &gradient, 2.0f);
  }
  return loss < first / 4 ? 0 : 1;
}
