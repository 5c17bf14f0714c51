# cmake --install: the library, its public headers and licence, a CMake package (find_package(foveal)) and a pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS foveal EXPORT foveal_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(FOVEAL_PRECOMPILED_KERNELS)
  install(DIRECTORY ${FOVEAL_KERNELS} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY include/foveal ${FOVEAL_GENERATED}/foveal DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/foveal)
install(EXPORT foveal_targets NAMESPACE foveal:: DESTINATION ${package_dir})
export(EXPORT foveal_targets NAMESPACE foveal:: FILE ${CMAKE_CURRENT_BINARY_DIR}/foveal_targets.cmake) # find_package() in the build folder
configure_package_config_file(cmake/foveal-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/foveal-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/foveal-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/foveal-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/foveal-config-version.cmake DESTINATION ${package_dir})

# pcfiledir makes the file valid wherever the tree is installed or moved to; folders that are absolute stay where they are.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(pc_prefix "\${pcfiledir}/${pc_to_prefix}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
  set(pc_${folder} "${CMAKE_INSTALL_${folder}}")
  if(NOT IS_ABSOLUTE "${pc_${folder}}")
    string(PREPEND pc_${folder} "\${prefix}/")
  endif()
endforeach()
# Who links a static library links what it needs; a shared one brings that along.
set(pc_static_libs "")
if(NOT BUILD_SHARED_LIBS)
  set(pc_static_libs "${OpenMP_CXX_FLAGS} -lstdc++ -lm -pthread ${CMAKE_DL_LIBS}")
  string(REGEX REPLACE "(^| )(dl)( |$)" "\\1-l\\2\\3" pc_static_libs "${pc_static_libs}")
endif()
configure_file(cmake/foveal.pc.in ${CMAKE_CURRENT_BINARY_DIR}/foveal.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/foveal.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
