/* What the lists of cases of the families share. */
#ifndef ONEPASS_CLI_CHECK_LIST_H
#define ONEPASS_CLI_CHECK_LIST_H

#include "check_cases.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

typedef shape shape_row;

/* Where the list is: the effort, and the operator, direction and type that all cases now have. */
typedef struct list {
  effort effort;
  bool cuda;
  case_visitor visit;
  void *context;
  int64_t number;
  check_case common;
} list;

/* Around the powers of two at which kernels of a GPU begin and end, and beyond what a chip can
 * hold. */
enum { CUDA_LENGTHS = 31, CUDA_FORMS = 4 };
extern const int64_t cuda_lengths[CUDA_LENGTHS];

void add_case(list *list, check_case check_case);
check_case with_shape(const list *list, const shape_row *row);
bool is_f32(const list *list);

/* All cases of an operator, direction and type. */
void add_norm_cases(list *list);
void add_pool_cases(list *list);

#endif
