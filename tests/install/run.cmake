# run(COMMAND...): its output is in `output`; a failure ends the test.
function(run)
  list(JOIN ARGN " " line)
  message(STATUS "${line}")
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message("${output}")
    message(FATAL_ERROR "ended with ${result}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# expect(WHAT REGEX): the last run's output holds it.
function(expect what regex)
  if(NOT output MATCHES "${regex}")
    message("${output}")
    message(FATAL_ERROR "lacks ${what}: ${regex}")
  endif()
endfunction()
