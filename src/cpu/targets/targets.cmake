# The target units: the only files compiled with wide instruction flags. They must export no weak symbols, or the linker could give a function that was
# compiled with wide instructions to everyone: so they use no templates or inline functions of std, and keep all but their tables in anonymous namespaces.
# (The two warnings off: g++ 12 sees uninitialised values in its own AVX-512 intrinsics.)
set(FOVEAL_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(FOVEAL_AVX512_FLAGS ${FOVEAL_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl)

function(foveal_add_target name)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/src/cpu/targets/${name}.cpp)
  target_sources(foveal_objects PRIVATE ${source})
  set(optimise -O3)
  if(FOVEAL_SANITIZE AND name MATCHES "^tape")
    set(optimise -O1) # the checks are most of what a tape takes to run, and optimising them is most of what it takes to build
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND name MATCHES "^tape")
    set(optimise -O2 -fvect-cost-model=dynamic -fpeel-loops -funswitch-loops) # of -O3 what a tape needs: as fast, built in little more than half the time
  endif()
  if(FOVEAL_SANITIZE MATCHES "fuzzer")
    # A fuzzer looks through the counters of all edges after each input, and kernels, once for every target, have most of them.
    list(APPEND ARGN -fno-sanitize-coverage=inline-8bit-counters,pc-table,indirect-calls,stack-depth,trace-cmp)
  endif()
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${optimise};$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;-Wno-uninitialized;${ARGN}")
endfunction()

foveal_add_target(scalar)
foveal_add_target(tape_scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  foveal_add_target(avx2 ${FOVEAL_AVX2_FLAGS})
  foveal_add_target(tape_avx2 ${FOVEAL_AVX2_FLAGS})
  foveal_add_target(avx512 ${FOVEAL_AVX512_FLAGS})
  foveal_add_target(avx512bf16 ${FOVEAL_AVX512_FLAGS} -mavx512bf16)
  foveal_add_target(amx ${FOVEAL_AVX512_FLAGS} -mavx512bf16)
  foveal_add_target(tape_avx512 ${FOVEAL_AVX512_FLAGS})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  foveal_add_target(neon)
  foveal_add_target(neonbf16 -march=armv8.2-a+bf16)
  foveal_add_target(neonfhm -march=armv8.2-a+fp16fml)
endif()
