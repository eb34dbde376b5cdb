# The CUDA backend: kernels compiled to fat binaries that are embedded in the library. The host side is
# C and opens the driver at run time, so nothing of CUDA is linked. Without nvcc this is a CPU build.

set(onepass_has_cuda OFF)
if(NOT ONEPASS_CUDA STREQUAL "OFF")
  find_program(ONEPASS_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(ONEPASS_NVCC)
    get_filename_component(onepass_nvcc_real "${ONEPASS_NVCC}" REALPATH)
    get_filename_component(onepass_cuda_root "${onepass_nvcc_real}" DIRECTORY)
    find_path(ONEPASS_CUDA_INCLUDE cuda.h HINTS "${onepass_cuda_root}/../include"
              "${onepass_cuda_root}/../targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include"
              "${onepass_cuda_root}/../targets/sbsa-linux/include" PATHS /usr/local/cuda/include)
  endif()
  if(ONEPASS_NVCC AND ONEPASS_CUDA_INCLUDE)
    set(onepass_has_cuda ON)
  elseif(ONEPASS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ONEPASS_CUDA is ON, but there is no nvcc with its cuda.h")
  else()
    message(STATUS "nvcc not found: building without CUDA")
  endif()
endif()

if(NOT onepass_has_cuda)
  target_sources(onepass_objects PRIVATE src/cuda/none.c)
  return()
endif()

enable_language(ASM)

# ---- The kernels -------------------------------------------------------------------------------------

# Machine code for each capability that this nvcc knows, and PTX of the last one for what comes later.
execute_process(COMMAND ${ONEPASS_NVCC} --list-gpu-arch OUTPUT_VARIABLE onepass_known_archs)
set(onepass_gencode "")
set(onepass_last_arch "")
foreach(arch IN LISTS ONEPASS_CUDA_ARCHITECTURES)
  if(onepass_known_archs MATCHES "compute_${arch}(\n|$)")
    list(APPEND onepass_gencode "-gencode=arch=compute_${arch},code=sm_${arch}")
    set(onepass_last_arch ${arch})
  else()
    message(STATUS "nvcc does not know compute capability ${arch}: left out")
  endif()
endforeach()
list(APPEND onepass_gencode "-gencode=arch=compute_${onepass_last_arch},code=compute_${onepass_last_arch}")
message(STATUS "CUDA kernels: ${onepass_gencode}")

set(onepass_nvcc_flags -std=c++17 -O3 -fmad=true --diag-suppress=128 -Xptxas=-v
  -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include ${onepass_gencode})
execute_process(COMMAND ${ONEPASS_NVCC} --help OUTPUT_VARIABLE onepass_nvcc_help)
if(onepass_nvcc_help MATCHES "compress-mode")
  list(APPEND onepass_nvcc_flags -compress-mode=size)
endif()
# One capability beside the other, where there are processors for it.
cmake_host_system_information(RESULT onepass_processors QUERY NUMBER_OF_LOGICAL_CORES)
if(onepass_processors GREATER_EQUAL 8 AND onepass_nvcc_help MATCHES "--threads")
  list(APPEND onepass_nvcc_flags --threads=4)
endif()
# Registers are counted out for nvcc 13; earlier ones run out of them in a few kernels.
set(onepass_may_spill OFF)
execute_process(COMMAND ${ONEPASS_NVCC} --version OUTPUT_VARIABLE onepass_nvcc_version)
if(onepass_nvcc_version MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 LESS 13)
  set(onepass_may_spill ON)
endif()
# Kernels take minutes to compile and do not depend on how the rest is built.
set(ONEPASS_FATBINS "" CACHE PATH "A folder with the fat binaries of another build, to use those")
set(onepass_fatbin_folder ${PROJECT_BINARY_DIR}/kernels)
if(ONEPASS_FATBINS)
  set(onepass_fatbin_folder ${ONEPASS_FATBINS})
endif()
set(onepass_fatbins "")
set(onepass_embeds "")
file(GLOB onepass_kernel_headers CONFIGURE_DEPENDS src/cuda/*.cuh src/norm/*.cuh src/pool/*.cuh)
foreach(family norm pool)
  foreach(type f32 f64 f16 bf16)
    set(name ${family}_${type})
    set(fatbin ${onepass_fatbin_folder}/${name}.fatbin)
    string(APPEND onepass_embeds "EMBED(onepass_fatbin_${name}, \"${fatbin}\")\n")
    list(APPEND onepass_fatbins ${fatbin})
    if(ONEPASS_EMULATED_GPU)
      continue() # tests/emulator makes them
    endif()
    if(ONEPASS_FATBINS)
      if(NOT EXISTS ${fatbin})
        message(FATAL_ERROR "ONEPASS_FATBINS: there is no ${fatbin}")
      endif()
      continue()
    endif()
    add_custom_command(OUTPUT ${fatbin}
      COMMAND ${CMAKE_COMMAND} -DNVCC=${ONEPASS_NVCC} "-DFLAGS=${onepass_nvcc_flags};-DONEPASS_ELEMENT_${type}"
              -DSOURCE=${PROJECT_SOURCE_DIR}/src/${family}/kernels.cu -DOUTPUT=${fatbin} -DMAY_SPILL=${onepass_may_spill}
              -P ${PROJECT_SOURCE_DIR}/cmake/compile_kernels.cmake
      DEPENDS src/${family}/kernels.cu src/${family}/cuda.h src/norm/cells.h ${onepass_kernel_headers} src/core/tensor.h
              src/core/dtype.h include/onepass.h cmake/compile_kernels.cmake
      COMMENT "Compiling the ${family} kernels for ${type}" VERBATIM)
  endforeach()
endforeach()

configure_file(src/cuda/embed.S.in ${PROJECT_BINARY_DIR}/kernels/embed.S @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/kernels/embed.S PROPERTIES OBJECT_DEPENDS "${onepass_fatbins}")

# ---- The host side -----------------------------------------------------------------------------------

target_sources(onepass_objects PRIVATE src/cuda/device.c src/cuda/driver.c src/norm/cuda.c src/norm/cuda_cells.c src/pool/cuda.c
  ${PROJECT_BINARY_DIR}/kernels/embed.S)
target_include_directories(onepass_objects SYSTEM PRIVATE ${ONEPASS_CUDA_INCLUDE})
target_compile_definitions(onepass_objects PRIVATE ONEPASS_HAS_CUDA)

# The driver alone, for the command and the tests, which need memory and events on a device.
add_library(onepass_cuda_driver STATIC src/cuda/driver.c)
target_include_directories(onepass_cuda_driver PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_include_directories(onepass_cuda_driver SYSTEM PUBLIC ${ONEPASS_CUDA_INCLUDE})
target_compile_definitions(onepass_cuda_driver PUBLIC ONEPASS_HAS_CUDA)
target_link_libraries(onepass_cuda_driver PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
