# FOVEAL_PRECOMPILED_KERNELS: kernels of plain attention, compiled with the NVRTC of this machine into a folder beside the library, where
# src/cuda/jit/shipped.h finds them, both in the build tree and in the installation.
add_custom_target(foveal_kernels)
if(NOT FOVEAL_PRECOMPILED_KERNELS)
  return()
endif()
add_executable(foveal_precompile tools/precompile.cpp)
target_link_libraries(foveal_precompile PRIVATE foveal_internal foveal_warnings)
set(FOVEAL_KERNELS ${CMAKE_CURRENT_BINARY_DIR}/foveal-kernels)
add_custom_command(
  OUTPUT ${FOVEAL_KERNELS}/compiler
  COMMAND foveal_precompile ${FOVEAL_KERNELS}
  DEPENDS foveal_precompile COMMENT "Compiling the kernels of plain attention" VERBATIM)
add_custom_target(foveal_kernels_compiled ALL DEPENDS ${FOVEAL_KERNELS}/compiler)
add_dependencies(foveal_kernels foveal_kernels_compiled)
