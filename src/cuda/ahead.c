#include "cuda/ahead.h"

enum { LINES_OF_A_THREAD = 4, MOST_LINES = 1 << 16 };

onepass_ahead_roles onepass_choose_ahead(const onepass_layouts *layouts, int64_t grid,
                                         int32_t block, int64_t few_blocks,
                                         const onepass_cuda_properties *device) {
  onepass_ahead_roles roles = {0};
  int64_t lines = 0;
  roles.arguments = device->major >= 9 && grid <= few_blocks;
  if (!roles.arguments) return roles;
  const onepass_ahead_roles none = roles;
  for (int r = 0; r < ONEPASS_ROLE_COUNT && roles.count < ONEPASS_AHEAD_MOST; r++) {
    const onepass_layout *layout = &layouts->of[r];
    const bool is_read = (layouts->present & ~layouts->written & ONEPASS_BIT(r)) != 0;
    /* Others have gaps, or the same element many times. */
    if (!is_read || !layout->count || layout->span != layout->count) continue;
    const int64_t bytes = layout->count * onepass_type_size(layout->type);
    lines += bytes / ONEPASS_AHEAD_LINE + 1;
    if (lines > MOST_LINES || lines > LINES_OF_A_THREAD * grid * block) return none;
    roles.role[roles.count] = (onepass_role)r;
    roles.bytes[roles.count++] = bytes;
  }
  return roles;
}

void onepass_find_ahead(const onepass_ahead_roles *roles, const onepass_buffers *buffers,
                        onepass_ahead *ahead) {
  ahead->count = roles->count;
  ahead->arguments = roles->arguments;
  for (int i = 0; i < roles->count; i++) {
    const char *const first = ((const char *const *)buffers)[roles->role[i]];
    const uintptr_t before = (uintptr_t)first % ONEPASS_AHEAD_LINE;
    ahead->first[i] = first - before;
    ahead->lines[i] = (uint32_t)(((uintptr_t)roles->bytes[i] + before + ONEPASS_AHEAD_LINE - 1) /
                                 ONEPASS_AHEAD_LINE);
  }
}
