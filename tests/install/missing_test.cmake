# A machine without any of the libraries: one message names all Debian packages
# that a wheel, or a build with tests, needs. Nothing is compiled before.
foreach(what IN ITEMS PYTHON TESTS)
  set(expected "libhwy-dev libfmt-dev nlohmann-json3-dev libxxhash-dev libcli11-dev")
  if(what STREQUAL "TESTS")
    string(APPEND expected " libgtest-dev librapidcheck-dev")
  else()
    string(APPEND expected " python3-dev")
  endif()
  set(work ${BUILD_DIR}/missing-test)
  file(REMOVE_RECURSE ${work})
  execute_process(
    COMMAND
      ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${work} -G ${GENERATOR}
      -D CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -D CMAKE_CXX_COMPILER=${COMPILER}
      -D CMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF
      -D CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF
      -D THINWIRE_BUILD_${what}=ON
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE errors)
  if(code EQUAL 0 OR NOT errors MATCHES "apt-get install ${expected}\n")
    message(FATAL_ERROR "${what} ended with ${code}, and does not name all:\n${errors}")
  endif()
endforeach()
