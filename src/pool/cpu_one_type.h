/* All kernels for one element type, in an order that matters. */
#include "pool/cpu_sums.h"

#include "pool/cpu_rows.h"

#include "pool/cpu_template.h"

#include "pool/cpu_planes.h"

#include "pool/cpu_gradients.h"
#include "pool/cpu_maxima.h"

#include "pool/cpu_channels.h"

#include "pool/cpu_names_end.h"
