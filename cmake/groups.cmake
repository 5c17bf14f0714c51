# FOVEAL_GROUP_SOURCES: most of what one file takes to compile is the standard library's headers, so the files of a group are compiled as one. A hash of
# its path chooses the group of a file: a new file moves no other, and neighbours, which are often written alike, seldom meet. Where two files of a group
# have a name in their anonymous namespaces, one of them takes another.
if(NOT FOVEAL_GROUP_SOURCES)
  return()
endif()
set_target_properties(foveal_objects PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
# For GCC no file of a group is the main one, where a class may have members of types that are the file's own.
target_compile_options(foveal_objects PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
foreach(source ${FOVEAL_SOURCES})
  file(RELATIVE_PATH path ${CMAKE_CURRENT_SOURCE_DIR} ${source})
  string(MD5 hash ${path})
  string(SUBSTRING ${hash} 0 1 group)
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
endforeach()
