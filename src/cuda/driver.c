#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static struct {
  pthread_once_t once;
  onepass_cuda_api api;
  bool usable;
  char reason[160];
} driver = {.once = PTHREAD_ONCE_INIT};

typedef struct symbol {
  const char *name, *first_name; /* with and without the version that cuda.h gives it */
  void **address;
} symbol;

#define TEXT_OF(name) #name
#define SYMBOL(name)  {TEXT_OF(name), #name, (void **)&driver.api.name},

static bool find_functions(void *library) {
  const symbol symbols[] = {ONEPASS_CUDA_FUNCTIONS(SYMBOL)};
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    *symbols[i].address = dlsym(library, symbols[i].name);
    if (*symbols[i].address) continue;
    /* The only version that drivers may lack is that of cuEventElapsedTime, which is the same. */
    *symbols[i].address = dlsym(library, symbols[i].first_name);
    if (*symbols[i].address) continue;
    snprintf(driver.reason, sizeof driver.reason,
             "the CUDA driver has no %s: expected one for CUDA 11.8 or later", symbols[i].name);
    return false;
  }
  return true;
}

/* The library stays open for good: a driver cannot be unloaded safely. */
static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(driver.reason, sizeof driver.reason, "there is no CUDA driver (libcuda.so.1)");
    return;
  }
  if (!find_functions(library)) return;
  const CUresult result = driver.api.cuInit(0);
  if (result != CUDA_SUCCESS) {
    const char *name = NULL, *text = NULL;
    driver.api.cuGetErrorName(result, &name);
    driver.api.cuGetErrorString(result, &text);
    snprintf(driver.reason, sizeof driver.reason, "cuInit: %s (%s)", name ? name : "unknown error",
             text ? text : "no description");
    return;
  }
  driver.usable = true;
}

const onepass_cuda_api *onepass_cuda_open(const char **reason) {
  pthread_once(&driver.once, open_driver);
  *reason = driver.reason;
  return driver.usable ? &driver.api : NULL;
}
