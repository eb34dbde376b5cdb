/*
 * PTX in few bytes. Nine tenths of what it takes to pack PTX are the numbers of its registers: every value has one of its
 * own, so two copies of a loop share no line. Short PTX says instead how long ago a register was last named:
 *
 *   add.s32 %r12, %r11, %r7;      becomes      add.s32 %r+, %r1, %r5;
 *
 * after %r7 to %r11 were named in this order: + is one that was not named before, 0 would be the last one named, counted for
 * each kind of register and anew in each function. Labels, $L__BB<function>_<number>, are treated alike. All else stays as it is. Numbers themselves are lost: long
 * PTX has its registers numbered in the order of their first appearance.
 */
#ifndef ONEPASS_CUDA_SHORT_PTX_H
#define ONEPASS_CUDA_SHORT_PTX_H

#include <stddef.h>

/* Both return text that ends with a 0, which the caller frees; NULL without memory, and, of onepass_lengthen_ptx, for what
 * is no short PTX. `length` is that of the text and becomes that of the result. */
char *onepass_shorten_ptx(const char *text, size_t *length);
char *onepass_lengthen_ptx(const char *text, size_t *length);

#endif
