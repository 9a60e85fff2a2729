# Runs PROGRAM on three ranks once per mistake and looks at what each rank says.
# run(MISTAKE REGEX...): the job ends by itself, and its output holds each.
function(run mistake)
  execute_process(
    COMMAND ${MPIEXEC} -np 3 ${PROGRAM} ${mistake} TIMEOUT 60
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  # mpiexec may crash itself when it ends a job of which one rank waits in
  # MPI_Finalize; that is a way to end, too.
  if(result EQUAL 0 OR result MATCHES "timeout")
    message(FATAL_ERROR "${mistake}: ended with ${result}\n${output}")
  endif()
  foreach(regex IN LISTS ARGN)
    if(NOT output MATCHES "${regex}")
      message(FATAL_ERROR "${mistake} lacks ${regex}:\n${output}")
    endif()
  endforeach()
endfunction()

# The job may end before all of them have spoken.
run(ends "error on rank [02]: [^\n]*rank 1 has left[^\n]*drop_last")
run(goes_on "error on rank [02]: [^\n]*rank 1 sent[^\n]*drop_last")
run(throws "error on rank [02]: [^\n]*gave up: my own cause"
    "error on rank 1: cancel_backward[^\n]*my own cause")
run(clips "error on rank [02]: [^\n]*gave up: step: the gradient of 'a'"
    "error on rank 1: step: the gradient of 'a'[^\n]*gradient_clipping")
