# cmake --install: the library, its public headers, a CMake package (find_package(foveal)) and a pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS foveal EXPORT foveal_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/foveal DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/foveal)
install(EXPORT foveal_targets NAMESPACE foveal:: DESTINATION ${package_dir})
configure_package_config_file(cmake/foveal-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/foveal-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/foveal-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/foveal-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/foveal-config-version.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/foveal.pc.in ${CMAKE_CURRENT_BINARY_DIR}/foveal.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/foveal.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
