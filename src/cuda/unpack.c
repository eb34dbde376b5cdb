/* A decoder for .xz files of LZMA2, written from the description of the format: to link liblzma would be one more library
 * that has to be there wherever onepass is. Checksums are not looked at, as the archives are part of the program. */
#include "cuda/unpack.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bits ---------------------------------------------------------------------------------------- */

/* A range decoder: a bit is as long as it is unlikely. Each probability, of a 0 in 2048, follows what was seen. */
typedef uint16_t probability;
enum { PROBABILITY_BITS = 11, EVEN = 1 << (PROBABILITY_BITS - 1), ADAPTATION = 5 };

typedef struct bit_reader {
  const uint8_t *next, *end;
  uint32_t range, code;
  bool is_short; /* read past the end */
} bit_reader;

static uint8_t next_byte(bit_reader *r) {
  if (r->next < r->end) return *r->next++;
  r->is_short = true;
  return 0;
}

static void begin_bits(bit_reader *r) {
  r->range = UINT32_MAX;
  r->code = 0;
  for (int i = 0; i < 5; i++) r->code = r->code << 8 | next_byte(r);
}

static void refill(bit_reader *r) {
  if (r->range >= UINT32_C(1) << 24) return;
  r->range <<= 8;
  r->code = r->code << 8 | next_byte(r);
}

static unsigned read_bit(bit_reader *r, probability *p) {
  refill(r);
  const uint32_t bound = (r->range >> PROBABILITY_BITS) * *p;
  if (r->code < bound) {
    r->range = bound;
    *p += ((1 << PROBABILITY_BITS) - *p) >> ADAPTATION;
    return 0;
  }
  r->range -= bound;
  r->code -= bound;
  *p -= *p >> ADAPTATION;
  return 1;
}

/* Bits that are as likely 0 as 1. */
static uint32_t read_even_bits(bit_reader *r, int count) {
  uint32_t value = 0;
  for (; count > 0; count--) {
    refill(r);
    r->range >>= 1;
    const bool one = r->code >= r->range;
    if (one) r->code -= r->range;
    value = value << 1 | one;
  }
  return value;
}

/* A number whose bits each have a probability for every beginning: the highest bit first, or last. */
static uint32_t read_number(bit_reader *r, probability *tree, int bits) {
  uint32_t node = 1;
  for (int i = 0; i < bits; i++) node = node << 1 | read_bit(r, &tree[node]);
  return node - (UINT32_C(1) << bits);
}

static uint32_t read_reversed(bit_reader *r, probability *tree, int bits) {
  uint32_t node = 1, value = 0;
  for (int i = 0; i < bits; i++) {
    const unsigned bit = read_bit(r, &tree[node]);
    node = node << 1 | bit;
    value |= bit << i;
  }
  return value;
}

/* ---- LZMA ---------------------------------------------------------------------------------------- */

enum {
  STATES = 12,            /* what the last few steps were */
  LITERALS_ONLY = 7,      /* states below: the last step was a literal */
  MOST_POSITION_BITS = 4, /* of where in 16 bytes a step begins */
  MOST_LITERAL_BITS = 4,  /* of where a literal is, and what is before it */
  POSITIONS = 1 << MOST_POSITION_BITS,
  LITERAL_TREE = 0x300,
  SHORTEST_MATCH = 2,
  LENGTH_CLASSES = 4, /* of matches, for how far back they are */
  SLOT_BITS = 6,
  FIRST_SLOT_WITH_EVEN_BITS = 14,
  LAST_BITS = 4
};

/* How long a match is: 0 to 7, 8 to 15, or from 16 on. */
typedef struct length_model {
  probability is_over_7, is_over_15;
  probability low[POSITIONS][8], middle[POSITIONS][8], high[256];
} length_model;

/* All that is learned. */
typedef struct lzma_model {
  probability is_match[STATES][POSITIONS], is_repeat[STATES], is_not_latest[STATES],
      is_not_second[STATES], is_fourth[STATES], is_long[STATES][POSITIONS];
  probability slot[LENGTH_CLASSES][1 << SLOT_BITS];
  probability distance_bits[128], last_bits[1 << LAST_BITS];
  length_model length, repeat_length;
  probability literal[LITERAL_TREE << MOST_LITERAL_BITS];
} lzma_model;

typedef struct decoder {
  bit_reader bits;
  lzma_model model;
  uint8_t *out;
  size_t at, size; /* of out */
  unsigned state;
  uint32_t back[4]; /* the last distances, the latest first, less one */
  int literal_context_bits, literal_position_bits, position_bits;
} decoder;

static void forget(decoder *d) {
  probability *all = (probability *)&d->model;
  for (size_t i = 0; i < sizeof d->model / sizeof *all; i++) all[i] = EVEN;
  d->state = 0;
  memset(d->back, 0, sizeof d->back);
}

static bool set_properties(decoder *d, unsigned properties) {
  d->literal_context_bits = (int)(properties % 9);
  d->literal_position_bits = (int)(properties / 9 % 5);
  d->position_bits = (int)(properties / 45);
  return d->literal_context_bits + d->literal_position_bits <= MOST_LITERAL_BITS &&
         d->position_bits <= MOST_POSITION_BITS;
}

static void read_literal(decoder *d) {
  const unsigned before = d->at ? d->out[d->at - 1] : 0;
  const size_t position = d->at & ((1u << d->literal_position_bits) - 1);
  const size_t context =
      (position << d->literal_context_bits) + (before >> (8 - d->literal_context_bits));
  probability *tree = d->model.literal + LITERAL_TREE * context;
  unsigned node = 1;
  if (d->state >= LITERALS_ONLY) { /* not what follows the last match, but like it up to some bit */
    unsigned expected = d->out[d->at - d->back[0] - 1];
    for (bool alike = true; alike && node < 0x100; expected <<= 1) {
      const unsigned bit = expected >> 7 & 1;
      node = node << 1 | read_bit(&d->bits, &tree[((1 + bit) << 8) + node]);
      alike = (node & 1) == bit;
    }
  }
  while (node < 0x100) node = node << 1 | read_bit(&d->bits, &tree[node]);
  d->out[d->at++] = (uint8_t)node;
  d->state -= d->state < 4 ? d->state : d->state < 10 ? 3 : 6;
}

static uint32_t read_length(decoder *d, length_model *model, unsigned position) {
  bit_reader *r = &d->bits;
  if (!read_bit(r, &model->is_over_7)) return read_number(r, model->low[position], 3);
  if (!read_bit(r, &model->is_over_15)) return 8 + read_number(r, model->middle[position], 3);
  return 16 + read_number(r, model->high, 8);
}

static uint32_t read_distance(decoder *d, uint32_t length) {
  bit_reader *r = &d->bits;
  const uint32_t class = length < LENGTH_CLASSES ? length : LENGTH_CLASSES - 1;
  const uint32_t slot = read_number(r, d->model.slot[class], SLOT_BITS);
  if (slot < 4) return slot;
  const int more = (int)(slot >> 1) - 1;
  uint32_t distance = (2 | (slot & 1)) << more;
  if (slot < FIRST_SLOT_WITH_EVEN_BITS)
    return distance + read_reversed(r, d->model.distance_bits + (distance - slot), more);
  distance += read_even_bits(r, more - LAST_BITS) << LAST_BITS;
  return distance + read_reversed(r, d->model.last_bits, LAST_BITS);
}

/* The distance that is `which` in the list of the last ones comes first. */
static void bring_forward(uint32_t back[4], int which) {
  const uint32_t chosen = back[which];
  for (; which > 0; which--) back[which] = back[which - 1];
  back[0] = chosen;
}

/* A match: how long it is, and back[0] is how far back. */
static uint32_t read_match(decoder *d, unsigned position) {
  bit_reader *r = &d->bits;
  lzma_model *m = &d->model;
  const unsigned state = d->state;
  const bool after_literal = state < LITERALS_ONLY;
  if (!read_bit(r, &m->is_repeat[state])) {
    const uint32_t length = read_length(d, &m->length, position);
    bring_forward(d->back, 3);
    d->back[0] = read_distance(d, length);
    d->state = after_literal ? 7 : 10;
    return length + SHORTEST_MATCH;
  }
  if (!read_bit(r, &m->is_not_latest[state])) {
    if (!read_bit(r, &m->is_long[state][position])) {
      d->state = after_literal ? 9 : 11;
      return 1;
    }
  } else if (!read_bit(r, &m->is_not_second[state])) {
    bring_forward(d->back, 1);
  } else {
    bring_forward(d->back, read_bit(r, &m->is_fourth[state]) ? 3 : 2);
  }
  d->state = after_literal ? 8 : 11;
  return read_length(d, &m->repeat_length, position) + SHORTEST_MATCH;
}

/* A chunk that becomes `size` bytes. */
static bool read_chunk(decoder *d, size_t size) {
  if (size > d->size - d->at) return false;
  const size_t end = d->at + size;
  while (d->at < end && !d->bits.is_short) {
    const unsigned position = (unsigned)(d->at & ((1u << d->position_bits) - 1));
    if (!read_bit(&d->bits, &d->model.is_match[d->state][position])) {
      read_literal(d);
      continue;
    }
    const uint32_t length = read_match(d, position);
    if (length > end - d->at || d->back[0] >= d->at) return false;
    const uint8_t *from = d->out + d->at - d->back[0] - 1;
    for (uint32_t i = 0; i < length; i++) d->out[d->at + i] = from[i]; /* they may overlap */
    d->at += length;
  }
  return d->at == end && !d->bits.is_short;
}

/* ---- LZMA2: chunks of LZMA, or of bytes as they are ------------------------------------------------ */

/* Where the chunks end, or NULL. */
static const uint8_t *read_chunks(decoder *d, const uint8_t *at, const uint8_t *end) {
  bool is_ready = false; /* properties and probabilities are known */
  while (end - at >= 1 && *at != 0) {
    const unsigned control = *at;
    const bool is_lzma = control >= 0x80, with_properties = control >= 0xc0;
    const ptrdiff_t header = is_lzma ? 5 + with_properties : 3;
    if (end - at < header || (!is_lzma && control > 2)) return NULL;
    size_t size = ((size_t)at[1] << 8 | at[2]) + 1, packed = size;
    if (is_lzma) {
      size += (size_t)(control & 0x1f) << 16;
      packed = ((size_t)at[3] << 8 | at[4]) + 1;
      if (with_properties && !set_properties(d, at[5])) return NULL;
      if (control >= 0xa0) forget(d);
      is_ready = is_ready || with_properties;
    }
    at += header;
    if ((size_t)(end - at) < packed || (is_lzma && !is_ready)) return NULL;
    if (is_lzma) {
      d->bits = (bit_reader){.next = at, .end = at + packed};
      begin_bits(&d->bits);
      if (!read_chunk(d, size)) return NULL;
    } else {
      if (size > d->size - d->at) return NULL;
      memcpy(d->out + d->at, at, size);
      d->at += size;
    }
    at += packed;
  }
  return at < end ? at + 1 : NULL;
}

/* ---- XZ: blocks, and an index of them ------------------------------------------------------------- */

enum { HEADER = 12, FOOTER = 12 };

/* Seven bits a byte, the lowest first; moves on. */
static uint64_t read_varint(const uint8_t **at, const uint8_t *end) {
  uint64_t value = 0;
  for (int shift = 0; shift < 63 && *at < end; shift += 7) {
    const uint8_t byte = *(*at)++;
    value |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

/* How much the blocks of a file become, by its index; 0 if there is none. */
static size_t unpacked_size(const uint8_t *packed, size_t size, const uint8_t **index) {
  static const uint8_t magic[] = {0xfd, '7', 'z', 'X', 'Z', 0};
  if (size < HEADER + FOOTER + 8 || memcmp(packed, magic, sizeof magic)) return 0;
  const uint8_t *footer = packed + size - FOOTER;
  if (footer[10] != 'Y' || footer[11] != 'Z') return 0;
  const uint64_t words = (uint64_t)footer[4] | (uint64_t)footer[5] << 8 |
                         (uint64_t)footer[6] << 16 | (uint64_t)footer[7] << 24;
  if ((words + 1) * 4 > size - HEADER - FOOTER) return 0;
  const uint8_t *at = *index = footer - (words + 1) * 4;
  if (*at++ != 0) return 0;
  uint64_t total = 0;
  for (uint64_t blocks = read_varint(&at, footer); blocks > 0 && at < footer; blocks--) {
    read_varint(&at, footer); /* its size in the file */
    total += read_varint(&at, footer);
  }
  /* A byte of LZMA2 becomes at most some thousand. */
  return total / 8192 < size ? (size_t)total : 0;
}

/* Bytes of the check behind every block. */
static size_t check_size(const uint8_t *packed) {
  static const uint8_t sizes[] = {0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64};
  return sizes[packed[7] & 0xf];
}

static bool read_blocks(decoder *d, const uint8_t *packed, const uint8_t *index) {
  const uint8_t *at = packed + HEADER;
  while (at < index) {
    const size_t header = ((size_t)*at + 1) * 4;
    if (*at == 0 || header > (size_t)(index - at)) return false;
    const uint8_t *end = read_chunks(d, at + header, index);
    if (!end) return false;
    const size_t length = ((size_t)(end - packed) + 3) / 4 * 4 + check_size(packed);
    if (length > (size_t)(index - packed)) return false;
    at = packed + length;
  }
  return d->at == d->size;
}

uint8_t *onepass_unpack_xz(const uint8_t *packed, size_t packed_size, size_t *size) {
  const uint8_t *index;
  *size = unpacked_size(packed, packed_size, &index);
  decoder *d = *size ? calloc(1, sizeof *d) : NULL;
  uint8_t *out = d ? malloc(*size) : NULL;
  if (out) {
    d->out = out;
    d->size = *size;
    if (!read_blocks(d, packed, index)) {
      free(out);
      out = NULL;
    }
  }
  free(d);
  return out;
}

/* ---- TAR ------------------------------------------------------------------------------------------ */

enum { TAR_BLOCK = 512, TAR_NAME = 100, TAR_SIZE_AT = 124, TAR_SIZE_DIGITS = 11 };

const uint8_t *onepass_find_in_tar(const uint8_t *archive, size_t archive_size, const char *name,
                                   size_t *size) {
  size_t at = 0;
  while (archive_size - at > TAR_BLOCK && archive[at]) {
    size_t length = 0;
    for (int i = 0; i < TAR_SIZE_DIGITS; i++)
      length = length * 8 + (archive[at + TAR_SIZE_AT + i] - (size_t)'0') % 8;
    const bool found = !strncmp((const char *)archive + at, name, TAR_NAME);
    at += TAR_BLOCK;
    if (length >= archive_size - at) return NULL;
    if (found) {
      *size = length;
      return archive + at;
    }
    at += (length + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    if (at > archive_size) return NULL;
  }
  return NULL;
}
