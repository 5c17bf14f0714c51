# The kernels of device/ travel inside the library: one generated table of (path, text).
file(GLOB_RECURSE FOVEAL_DEVICE_FILES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/device/*.cuh)
set(FOVEAL_EMBEDDED ${CMAKE_CURRENT_BINARY_DIR}/generated/embedded_kernels.cpp)
add_custom_command(
  OUTPUT ${FOVEAL_EMBEDDED}
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/device -DOUTPUT=${FOVEAL_EMBEDDED}
          -P ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/embed_files.cmake
  DEPENDS ${FOVEAL_DEVICE_FILES} ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/embed_files.cmake
  COMMENT "Embedding the GPU kernels" VERBATIM)
target_sources(foveal_objects PRIVATE ${FOVEAL_EMBEDDED})
target_link_libraries(foveal_objects PRIVATE ${CMAKE_DL_LIBS})
