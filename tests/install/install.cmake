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

# The outside project in this language, with these options, is built and runs.
function(consume build language)
  run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} ${toolchain} -DLANGUAGE=${language} ${ARGN})
  run(${CMAKE_COMMAND} --build ${build} --target consumer)
  run(${build}/consumer)
endfunction()

# The outside project is told what is wrong.
function(consume_in_vain build language message)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} ${toolchain} -DLANGUAGE=${language} ${ARGN}
                  RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE error)
  string(REGEX REPLACE "[ \n]+" " " error "${error}")
  if(code EQUAL 0 OR NOT error MATCHES "${message}")
    message(FATAL_ERROR "a project was not told: ${message}: ${error}")
  endif()
endfunction()

# find_package() and pkg-config from C and C++ find what stands under `prefix`.
function(use prefix languages library include)
  foreach(file ${include}/foveal/foveal.h ${include}/foveal/foveal_c.h ${include}/foveal/version.h ${LIBDIR}/${library} ${LIBDIR}/pkgconfig/foveal.pc)
    if(NOT EXISTS ${prefix}/${file})
      message(FATAL_ERROR "not installed: ${file}")
    endif()
  endforeach()
  foreach(language ${languages})
    consume(${prefix}-${language} ${language} "-DCMAKE_PREFIX_PATH=${prefix}")
  endforeach()
  if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
    execute_process(COMMAND ${PKG_CONFIG} --cflags --libs foveal OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags UNIX_COMMAND "${flags}")
    run(${CXX} -std=c++20 ${compile_flags} ${CONSUMER}/main.cpp ${flags} "-Wl,-rpath,${prefix}/${LIBDIR}" -o ${prefix}-pkg-config-CXX)
    run(${prefix}-pkg-config-CXX)
    run(${CC} -std=c11 ${compile_flags} ${CONSUMER}/main.c ${flags} "-Wl,-rpath,${prefix}/${LIBDIR}" -o ${prefix}-pkg-config-C)
    run(${prefix}-pkg-config-C)
  endif()
endfunction()

# A shared library, in a folder that was moved after the installation; and not installed at all.
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${SCRATCH}/shared)
file(RENAME ${SCRATCH}/shared "${SCRATCH}/moved there")
use("${SCRATCH}/moved there" "C;CXX" libfoveal.so include)
consume_in_vain(${SCRATCH}/components C "COMPONENTS cuda; expected none" "-DCMAKE_PREFIX_PATH=${SCRATCH}/moved there" -DCOMPONENTS=cuda)
consume(${SCRATCH}/not-installed C -Dfoveal_DIR=${BUILD_DIR})

# A static library: configured as one, its archive taken from this build, where it holds the same objects: to make them anew would take as long as the
# library, as compiler caches tell folders apart. Its folders have names of their own.
run(${CMAKE_COMMAND} -S ${ROOT} -B ${SCRATCH}/static-build ${toolchain} -DBUILD_SHARED_LIBS=OFF -DFOVEAL_OPENMP=${OPENMP} -DFOVEAL_BUILD_TESTS=OFF
    -DFOVEAL_BUILD_CLI=OFF -DFOVEAL_BUILD_EXAMPLES=OFF -DFOVEAL_BUILD_MICRO=OFF -DCMAKE_INSTALL_PREFIX=${SCRATCH}/static
    -DCMAKE_INSTALL_INCLUDEDIR=headers -DCMAKE_INSTALL_LIBDIR=${SCRATCH}/static/${LIBDIR})
run(${CMAKE_COMMAND} -E copy ${BUILD_DIR}/libfoveal_internal.a ${SCRATCH}/static-build/libfoveal.a)
run(${CMAKE_COMMAND} --install ${SCRATCH}/static-build)
use(${SCRATCH}/static CXX libfoveal.a headers)
# Two plug-ins with a copy each, in a program with a third.
set(static_flags -I${SCRATCH}/static/headers ${SCRATCH}/static/${LIBDIR}/libfoveal.a -pthread -ldl)
if(OPENMP)
  list(APPEND static_flags -fopenmp)
endif()
foreach(plugin 1 2)
  run(${CXX} -std=c++20 -shared -fPIC ${compile_flags} -DNAME=run_${plugin} ${COPIES}/plugin.cpp ${static_flags} -Wl,--exclude-libs,ALL -Wl,-z,nodelete
      -o ${SCRATCH}/libplugin_${plugin}.so)
endforeach()
run(${CXX} -std=c++20 ${compile_flags} ${COPIES}/main.cpp ${COPIES}/plugin.cpp -DNAME=run_0 ${SCRATCH}/libplugin_1.so ${SCRATCH}/libplugin_2.so
    ${static_flags} -Wl,-rpath,${SCRATCH} -o ${SCRATCH}/copies)
run(${SCRATCH}/copies)
consume_in_vain(${SCRATCH}/static-C C "add CXX to the languages" -DCMAKE_PREFIX_PATH=${SCRATCH}/static)

# Several dependencies of a project bring it along, or find it installed: the first is used, and another version refused.
function(together name)
  run(${CMAKE_COMMAND} -S ${TOGETHER} -B ${SCRATCH}/together-${name} ${toolchain} -DFOVEAL=${ROOT} -DFOVEAL_OPENMP=${OPENMP} ${ARGN})
endfunction()
together(brought -DAS=fetch,fetch,subfolder,find -Dfoveal_DIR=${BUILD_DIR})
together(found -DAS=find,fetch,subfolder,find -Dfoveal_DIR=${BUILD_DIR})
run(${CMAKE_COMMAND} --build ${SCRATCH}/together-found)
run(${SCRATCH}/together-found/together)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${TOGETHER} -B ${SCRATCH}/together-other ${toolchain} -DFOVEAL=${ROOT} -DFOVEAL_OPENMP=${OPENMP}
                        -DAS=subfolder -DOTHER_VERSION=0.0.9 RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE error)
string(REGEX REPLACE "[ \n]+" " " error "${error}")
if(code EQUAL 0 OR NOT error MATCHES "already has foveal 0.0.9; expected one version")
  message(FATAL_ERROR "two versions in one project: ${code}: ${error}")
endif()

# As a subfolder of projects of C alone and of an older C++: nothing but the library would be built, and their own sources compile. They are not linked, which
# would compile the library for each; the targets that they would link are those of the build, which the programs above link.
function(as_subfolder language standard)
  set(build ${SCRATCH}/subfolder-${language})
  run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} ${toolchain} -DLANGUAGE=${language} -DSTANDARD=${standard} -DFOVEAL=${ROOT} -DFOVEAL_OPENMP=${OPENMP})
  run(${CMAKE_COMMAND} --build ${build} --target consumer_objects)
endfunction()
as_subfolder(C "")
as_subfolder(CXX 17)
