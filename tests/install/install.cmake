# cmake -P install.cmake: see CMakeLists.txt beside it.
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed (${code}): ${ARGV}\n${output}")
  endif()
endfunction()

set(toolchain -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_COMPILER=${CC} "-DCMAKE_CXX_FLAGS=${FLAGS}" "-DCMAKE_C_FLAGS=${FLAGS}")
separate_arguments(compile_flags UNIX_COMMAND "${FLAGS}")

# find_package() and pkg-config from C and C++ find what stands under `prefix`.
function(use prefix languages library)
  foreach(file include/foveal/foveal.h include/foveal/foveal_c.h include/foveal/version.h ${LIBDIR}/${library} ${LIBDIR}/pkgconfig/foveal.pc)
    if(NOT EXISTS ${prefix}/${file})
      message(FATAL_ERROR "not installed: ${file}")
    endif()
  endforeach()
  foreach(language ${languages})
    set(build ${prefix}-${language})
    run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} ${toolchain} -DLANGUAGE=${language} -DCMAKE_PREFIX_PATH=${prefix})
    run(${CMAKE_COMMAND} --build ${build} --target consumer)
    run(${build}/consumer)
  endforeach()
  if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
    execute_process(COMMAND ${PKG_CONFIG} --cflags --libs foveal OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags)
    run(${CXX} -std=c++20 ${compile_flags} ${CONSUMER}/main.cpp ${flags} -Wl,-rpath,${prefix}/${LIBDIR} -o ${prefix}-pkg-config-CXX)
    run(${prefix}-pkg-config-CXX)
    run(${CC} -std=c11 ${compile_flags} ${CONSUMER}/main.c ${flags} -Wl,-rpath,${prefix}/${LIBDIR} -o ${prefix}-pkg-config-C)
    run(${prefix}-pkg-config-C)
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${SCRATCH}/shared)
use(${SCRATCH}/shared "C;CXX" libfoveal.so)

# A static library: configured as one, its archive taken from this build, where it holds the same objects.
run(${CMAKE_COMMAND} -S ${ROOT} -B ${SCRATCH}/static-build ${toolchain} -DBUILD_SHARED_LIBS=OFF -DFOVEAL_OPENMP=${OPENMP} -DFOVEAL_BUILD_TESTS=OFF
    -DFOVEAL_BUILD_CLI=OFF -DFOVEAL_BUILD_EXAMPLES=OFF -DFOVEAL_BUILD_MICRO=OFF)
run(${CMAKE_COMMAND} -E copy ${BUILD_DIR}/libfoveal_internal.a ${SCRATCH}/static-build/libfoveal.a)
run(${CMAKE_COMMAND} --install ${SCRATCH}/static-build --prefix ${SCRATCH}/static)
use(${SCRATCH}/static CXX libfoveal.a)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${SCRATCH}/static-C ${toolchain} -DLANGUAGE=C -DCMAKE_PREFIX_PATH=${SCRATCH}/static
                RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE error)
if(code EQUAL 0 OR NOT error MATCHES "add CXX to the +languages")
  message(FATAL_ERROR "a project of C alone was not told what a static library of C++ needs: ${error}")
endif()

# As a subfolder of projects of C alone and of an older C++: nothing but the library is built, and their own sources compile.
function(as_subfolder language standard)
  set(build ${SCRATCH}/subfolder-${language})
  run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} ${toolchain} -DLANGUAGE=${language} -DSTANDARD=${standard} -DFOVEAL=${ROOT} -DFOVEAL_OPENMP=${OPENMP})
  run(${CMAKE_COMMAND} --build ${build} --target consumer_objects)
endfunction()
as_subfolder(C "")
as_subfolder(CXX 17)
