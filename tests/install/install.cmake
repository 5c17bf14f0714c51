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

# What outside projects are written in.
set(C -DLANGUAGE=C -DSOURCE=main.c)
set(CXX17 -DLANGUAGE=CXX -DSTANDARD=17 -DSOURCE=older.cpp)
set(CXX20 -DLANGUAGE=CXX -DSTANDARD=20 -DSOURCE=main.cpp)

# The outside project in this language, with these options, is built and runs.
function(consume build language)
  run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} ${toolchain} ${${language}} ${ARGN})
  run(${CMAKE_COMMAND} --build ${build})
  run(${build}/consumer)
endfunction()

# The outside project is told what is wrong.
function(consume_in_vain build language message)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} ${toolchain} ${${language}} ${ARGN}
                  RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE error)
  if(code EQUAL 0)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} RESULT_VARIABLE code OUTPUT_VARIABLE error ERROR_VARIABLE error)
  endif()
  string(REGEX REPLACE "[ \n]+" " " error "${error}")
  if(code EQUAL 0 OR NOT error MATCHES "${message}")
    message(FATAL_ERROR "a project was not told: ${message}: ${error}")
  endif()
endfunction()

# find_package() and pkg-config from C and C++ find what stands under `prefix`.
function(use prefix languages library include)
  foreach(file ${include}/foveal/foveal.h ${include}/foveal/foveal_c.h ${include}/foveal/version.h ${LIBDIR}/${library} ${LIBDIR}/pkgconfig/foveal.pc
               share/doc/foveal/LICENSE)
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
    execute_process(COMMAND ${PKG_CONFIG} --static --cflags --libs foveal OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags UNIX_COMMAND "${flags}")
    run(${CC} -std=c11 ${compile_flags} ${CONSUMER}/main.c ${flags} "-Wl,-rpath,${prefix}/${LIBDIR}" -o ${prefix}-pkg-config-C)
    run(${prefix}-pkg-config-C)
  endif()
endfunction()

# A shared library, in a folder that was moved after the installation; and not installed at all.
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${SCRATCH}/shared)
file(RENAME ${SCRATCH}/shared "${SCRATCH}/moved there")
use("${SCRATCH}/moved there" "C;CXX17;CXX20" libfoveal.so include)
consume_in_vain(${SCRATCH}/components C "COMPONENTS cuda; expected none" "-DCMAKE_PREFIX_PATH=${SCRATCH}/moved there" -DCOMPONENTS=cuda)
consume(${SCRATCH}/not-installed C -Dfoveal_DIR=${BUILD_DIR})

# Libraries that are built in other folders, from the sources to the end, but for what a compiler has made of them already in this build (reuse.py).
set(again -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DFOVEAL_GROUP_SOURCES=${GROUPS} -DFOVEAL_OPENMP=${OPENMP})
macro(reuse_for folder)
  set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${PYTHON};-SE;${CMAKE_CURRENT_LIST_DIR}/reuse.py;${BUILD_DIR};${folder}")
endmacro()

# A static library, whose folders have names of their own.
reuse_for(${SCRATCH}/static-build)
run(${CMAKE_COMMAND} -S ${ROOT} -B ${SCRATCH}/static-build ${toolchain} ${again} -DBUILD_SHARED_LIBS=OFF -DFOVEAL_BUILD_TESTS=OFF
    -DFOVEAL_BUILD_CLI=OFF -DFOVEAL_BUILD_EXAMPLES=OFF -DFOVEAL_BUILD_MICRO=OFF -DCMAKE_INSTALL_PREFIX=${SCRATCH}/static
    -DCMAKE_INSTALL_INCLUDEDIR=headers -DCMAKE_INSTALL_LIBDIR=${SCRATCH}/static/${LIBDIR})
run(${CMAKE_COMMAND} --build ${SCRATCH}/static-build)
run(${CMAKE_COMMAND} --install ${SCRATCH}/static-build)
unset(ENV{CMAKE_CXX_COMPILER_LAUNCHER})
use(${SCRATCH}/static "CXX17;CXX20" libfoveal.a headers)
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

# As a subfolder: a shared library for a project of C alone, a static one for a project of an older C++ that asks for that.
function(as_subfolder language)
  set(build ${SCRATCH}/subfolder-${language})
  reuse_for(${build}/foveal)
  consume(${build} ${language} ${again} -DFOVEAL=${ROOT} ${ARGN})
  unset(ENV{CMAKE_CXX_COMPILER_LAUNCHER})
endfunction()
as_subfolder(C)
as_subfolder(CXX17 -DBUILD_SHARED_LIBS=OFF)
# The C++ headers say what they need.
set(OLD -DLANGUAGE=CXX -DSTANDARD=17 -DSOURCE=main.cpp)
consume_in_vain(${SCRATCH}/old-found OLD "C[+][+] headers need C[+][+]20" "-DCMAKE_PREFIX_PATH=${SCRATCH}/moved there")
