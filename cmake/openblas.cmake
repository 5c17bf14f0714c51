# OpenBLAS for the programs around the library (the GPT's dense layers, the unfused computation that `foveal bench` compares with).
# The OpenMP build is preferred: it shares its threads with foveal, where others would compete for the cores.
include_guard(GLOBAL)
find_path(OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp openblas-openmp openblas)
find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp openblas-openmp)
if(OPENBLAS_INCLUDE AND OPENBLAS_LIBRARY)
  add_library(openblas INTERFACE IMPORTED GLOBAL)
  target_include_directories(openblas INTERFACE ${OPENBLAS_INCLUDE})
  target_link_libraries(openblas INTERFACE ${OPENBLAS_LIBRARY})
endif()
