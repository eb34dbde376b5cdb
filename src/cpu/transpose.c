/* Square by square, in vectors of at most 16 bytes, which every CPU has; what is left element by element. */
#include "cpu/transpose.h"

#include <string.h>

/* Whatever the elements are. */
typedef uint16_t bits_16 __attribute__((may_alias));
typedef uint32_t bits_32 __attribute__((may_alias));
typedef uint64_t bits_64 __attribute__((may_alias));

#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (lanes){__VA_ARGS__})
#endif

/* The columns of a square, given its rows. */
#define TURN_2(column, row)                 \
  do {                                      \
    column[0] = PICK(row[0], row[1], 0, 2); \
    column[1] = PICK(row[0], row[1], 1, 3); \
  } while (0)
#define TURN_4(column, row)                                                                 \
  do {                                                                                      \
    const lanes a = PICK(row[0], row[1], 0, 4, 1, 5), b = PICK(row[2], row[3], 0, 4, 1, 5); \
    const lanes c = PICK(row[0], row[1], 2, 6, 3, 7), d = PICK(row[2], row[3], 2, 6, 3, 7); \
    column[0] = PICK(a, b, 0, 1, 4, 5);                                                     \
    column[1] = PICK(a, b, 2, 3, 6, 7);                                                     \
    column[2] = PICK(c, d, 0, 1, 4, 5);                                                     \
    column[3] = PICK(c, d, 2, 3, 6, 7);                                                     \
  } while (0)

#define DEFINE_TRANSPOSE(bits, side)                                                            \
  static void transpose_##bits(bits_##bits *to, int64_t to_step, const bits_##bits *from,       \
                               int64_t from_step, int64_t rows, int64_t columns) {              \
    typedef uint##bits##_t lanes __attribute__((vector_size(side * (bits / 8))));               \
    int64_t j = 0;                                                                              \
    for (; j + side <= rows; j += side) {                                                       \
      int64_t k = 0;                                                                            \
      for (; k + side <= columns; k += side) {                                                  \
        lanes row[side], column[side];                                                          \
        for (int i = 0; i < side; i++) {                                                        \
          memcpy(&row[i], from + (j + i) * from_step + k, sizeof row[i]);                       \
        }                                                                                       \
        TURN_##side(column, row);                                                               \
        for (int i = 0; i < side; i++) {                                                        \
          memcpy(to + (k + i) * to_step + j, &column[i], sizeof column[i]);                     \
        }                                                                                       \
      }                                                                                         \
      for (; k < columns; k++) {                                                                \
        for (int i = 0; i < side; i++) to[k * to_step + j + i] = from[(j + i) * from_step + k]; \
      }                                                                                         \
    }                                                                                           \
    for (; j < rows; j++) {                                                                     \
      for (int64_t k = 0; k < columns; k++) to[k * to_step + j] = from[j * from_step + k];      \
    }                                                                                           \
  }
DEFINE_TRANSPOSE(16, 4)
DEFINE_TRANSPOSE(32, 4)
DEFINE_TRANSPOSE(64, 2)

void onepass_transpose(int64_t size, void *to, int64_t to_step, const void *from, int64_t from_step,
                       int64_t rows, int64_t columns) {
  switch (size) {
    case 2:
      transpose_16(to, to_step, from, from_step, rows, columns);
      break;
    case 4:
      transpose_32(to, to_step, from, from_step, rows, columns);
      break;
    default:
      transpose_64(to, to_step, from, from_step, rows, columns);
  }
}
