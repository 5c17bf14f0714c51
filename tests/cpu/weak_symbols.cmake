# cmake -DNM=nm -DOBJECTS="a.o;b.o" -P weak_symbols.cmake: fails when an object that is compiled with wide instruction flags exports a weak symbol. The
# linker keeps one copy of such a function for the whole program, and might keep the one with instructions that the processor lacks.
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} ${object}: ${failed}")
  endif()
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
  if(weak)
    message(FATAL_ERROR "${object} exports weak symbols:\n${weak}")
  endif()
endforeach()
