# The CUDA backend: kernels compiled for every GPU, packed, and embedded in the library. The host side is
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

# C++ becomes PTX for few capabilities, and their PTX machine code for all; later GPUs get the last PTX.
execute_process(COMMAND ${ONEPASS_NVCC} --list-gpu-arch OUTPUT_VARIABLE onepass_known_archs)
set(onepass_archs "")
foreach(arch IN LISTS ONEPASS_CUDA_ARCHITECTURES)
  if(onepass_known_archs MATCHES "compute_${arch}(\n|$)")
    list(APPEND onepass_archs ${arch})
  else()
    message(STATUS "nvcc does not know compute capability ${arch}: left out")
  endif()
endforeach()
message(STATUS "CUDA kernels for compute capabilities ${onepass_archs}")

# The capability whose PTX becomes the machine code of `arch`. From 10.0 on kernels are all the same.
function(onepass_find_ptx arch result)
  foreach(other IN LISTS onepass_archs)
    if(other GREATER_EQUAL 100 AND other LESS arch)
      set(arch ${other})
    endif()
  endforeach()
  set(${result} ${arch} PARENT_SCOPE)
endfunction()

set(onepass_nvcc_flags -std=c++17 -O3 -fmad=true --diag-suppress=128 -I${PROJECT_SOURCE_DIR}/src
  -I${PROJECT_SOURCE_DIR}/include)
# Registers are counted out for nvcc 13; earlier ones run out of them in a few kernels.
set(onepass_may_spill OFF)
execute_process(COMMAND ${ONEPASS_NVCC} --version OUTPUT_VARIABLE onepass_nvcc_version)
if(onepass_nvcc_version MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 LESS 13)
  set(onepass_may_spill ON)
endif()

# Kernels take minutes to compile and do not depend on how the rest is built.
set(ONEPASS_KERNELS "" CACHE PATH "A folder with the packed kernels of another build, to use those")
set(onepass_kernel_folder ${PROJECT_BINARY_DIR}/kernels)
set(onepass_types f32 f64 f16 bf16)
set(onepass_archives "")
set(onepass_embeds "")
set(onepass_archive_names "")
set(onepass_archive_lines "")
file(GLOB onepass_kernel_headers CONFIGURE_DEPENDS src/cuda/*.cuh src/norm/*.cuh src/pool/*.cuh)

# Runs nvcc or its assembler: see compile_kernels.cmake.
function(onepass_compile comment compiler source output)
  cmake_parse_arguments(PARSE_ARGV 4 arg "" "" "FLAGS;DEPENDS")
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DCOMPILER=${compiler} "-DFLAGS=${arg_FLAGS}" -DSOURCE=${source} -DOUTPUT=${output}
            -DMAY_SPILL=${onepass_may_spill} -P ${PROJECT_SOURCE_DIR}/cmake/compile_kernels.cmake
    DEPENDS ${source} ${arg_DEPENDS} cmake/compile_kernels.cmake
    COMMENT "${comment}" VERBATIM)
endfunction()

# The kernels of a family for all types, as one archive: what types have in common is packed once. An instruction has 16
# bytes, and xz, told so, makes 5 % less of them than CMake's own packer can be told to.
find_program(ONEPASS_XZ xz)
function(onepass_pack family folder is_ptx)
  set(archive ${onepass_kernel_folder}/${family}_${folder}.tar.xz)
  set(contents lc=0,lp=4,pb=4)
  if(is_ptx)
    set(folder short_${folder})
    set(contents lc=4,lp=0,pb=0)
  endif()
  list(TRANSFORM onepass_types PREPEND ${family}_ OUTPUT_VARIABLE files)
  list(TRANSFORM files PREPEND ${onepass_kernel_folder}/${folder}/ OUTPUT_VARIABLE paths)
  set(tar --format=gnutar --mtime=2000-01-01 -- ${files})
  set(pack COMMAND ${CMAKE_COMMAND} -E tar cJf ${archive} ${tar})
  if(ONEPASS_XZ)
    set(pack COMMAND ${CMAKE_COMMAND} -E tar cf ${family}.tar ${tar}
             COMMAND ${ONEPASS_XZ} --force --check=crc32 --lzma2=preset=9e,${contents} ${family}.tar
             COMMAND ${CMAKE_COMMAND} -E rename ${family}.tar.xz ${archive})
  endif()
  add_custom_command(OUTPUT ${archive} ${pack}
    WORKING_DIRECTORY ${onepass_kernel_folder}/${folder}
    DEPENDS ${paths}
    COMMENT "Packing the ${family} kernels (${folder})" VERBATIM)
endfunction()

# Most of PTX are the numbers of its registers: src/cuda/short_ptx.h.
add_executable(onepass_shorten_ptx EXCLUDE_FROM_ALL src/cuda/shorten_ptx.c src/cuda/short_ptx.c)
target_include_directories(onepass_shorten_ptx PRIVATE src)
function(onepass_shorten family folder)
  file(MAKE_DIRECTORY ${onepass_kernel_folder}/short_${folder})
  foreach(type IN LISTS onepass_types)
    set(name ${family}_${type})
    add_custom_command(OUTPUT ${onepass_kernel_folder}/short_${folder}/${name}
      COMMAND onepass_shorten_ptx ${folder}/${name} short_${folder}/${name}
      WORKING_DIRECTORY ${onepass_kernel_folder}
      DEPENDS onepass_shorten_ptx ${onepass_kernel_folder}/${folder}/${name}
      COMMENT "Shortening the ${family} kernels for ${type} (${folder})" VERBATIM)
  endforeach()
endfunction()

set(onepass_ptx_files "") # a test looks at them
foreach(family norm pool)
  set(ptxs "")
  foreach(arch IN LISTS onepass_archs)
    onepass_find_ptx(${arch} ptx)
    if(NOT ONEPASS_KERNELS AND NOT ONEPASS_EMULATED_GPU) # tests/emulator makes its own
      file(MAKE_DIRECTORY ${onepass_kernel_folder}/sm_${arch} ${onepass_kernel_folder}/compute_${ptx})
      foreach(type IN LISTS onepass_types)
        set(name ${family}_${type})
        set(assembly ${onepass_kernel_folder}/compute_${ptx}/${name})
        if(NOT ptx IN_LIST ptxs)
          onepass_compile("Compiling the ${family} kernels for ${type} (compute_${ptx})" ${ONEPASS_NVCC}
            ${PROJECT_SOURCE_DIR}/src/${family}/kernels.cu ${assembly}
            FLAGS ${onepass_nvcc_flags} -DONEPASS_ELEMENT_${type} -ptx -arch=compute_${ptx}
            DEPENDS src/${family}/cuda.h src/norm/cells.h src/cuda/divider.h src/cuda/turns.h ${onepass_kernel_headers} src/core/tensor.h src/core/dtype.h
                    include/onepass.h)
          list(APPEND onepass_ptx_files ${assembly})
        endif()
        onepass_compile("Assembling the ${family} kernels for ${type} (sm_${arch})" ${onepass_cuda_root}/ptxas
          ${assembly} ${onepass_kernel_folder}/sm_${arch}/${name}
          FLAGS -O3 -v -arch=sm_${arch})
      endforeach()
    endif()
    list(APPEND ptxs ${ptx})
    list(APPEND onepass_archive_names "${family} sm_${arch} ${arch} 0")
  endforeach()
  list(APPEND onepass_archive_names "${family} compute_${ptx} ${ptx} 1")
  set(onepass_last_ptx ${ptx})
endforeach()

foreach(archive IN LISTS onepass_archive_names)
  string(REPLACE " " ";" archive "${archive}")
  list(GET archive 0 family)
  list(GET archive 1 folder)
  list(GET archive 2 arch)
  list(GET archive 3 is_ptx)
  if(ONEPASS_EMULATED_GPU AND NOT is_ptx AND NOT folder STREQUAL "sm_90") # which is what the emulated GPU is
    continue()
  endif()
  set(packed ${onepass_kernel_folder}/${family}_${folder}.tar.xz)
  if(ONEPASS_KERNELS)
    set(packed ${ONEPASS_KERNELS}/${family}_${folder}.tar.xz)
    if(NOT EXISTS ${packed})
      message(FATAL_ERROR "ONEPASS_KERNELS: there is no ${packed}")
    endif()
  else()
    if(is_ptx AND NOT ONEPASS_EMULATED_GPU)
      onepass_shorten(${family} ${folder})
    endif()
    onepass_pack(${family} ${folder} ${is_ptx})
  endif()
  list(APPEND onepass_archives ${packed})
  string(TOUPPER ${family} FAMILY)
  string(APPEND onepass_embeds "EMBED(onepass_kernels_${family}_${folder}, \"${packed}\")\n")
  string(APPEND onepass_archive_lines "ARCHIVE(ONEPASS_CUDA_${FAMILY}, ${family}_${folder}, ${arch}, ${is_ptx})\n")
endforeach()

configure_file(src/cuda/embed.S.in ${PROJECT_BINARY_DIR}/kernels/embed.S @ONLY)
configure_file(src/cuda/archives.inc.in ${PROJECT_BINARY_DIR}/kernels/archives.inc @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/kernels/embed.S PROPERTIES OBJECT_DEPENDS "${onepass_archives}")

# ---- The host side -----------------------------------------------------------------------------------

target_sources(onepass_objects PRIVATE src/cuda/archives.c src/cuda/device.c src/cuda/driver.c src/cuda/short_ptx.c src/cuda/unpack.c
  src/norm/cuda.c src/norm/cuda_cells.c src/pool/cuda.c ${PROJECT_BINARY_DIR}/kernels/embed.S)
target_include_directories(onepass_objects PRIVATE ${PROJECT_BINARY_DIR}/kernels)
target_include_directories(onepass_objects SYSTEM PRIVATE ${ONEPASS_CUDA_INCLUDE})
target_compile_definitions(onepass_objects PRIVATE ONEPASS_HAS_CUDA)

# The driver alone, for the command and the tests, which need memory and events on a device.
add_library(onepass_cuda_driver STATIC src/cuda/driver.c)
target_include_directories(onepass_cuda_driver PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_include_directories(onepass_cuda_driver SYSTEM PUBLIC ${ONEPASS_CUDA_INCLUDE})
target_compile_definitions(onepass_cuda_driver PUBLIC ONEPASS_HAS_CUDA)
target_link_libraries(onepass_cuda_driver PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
