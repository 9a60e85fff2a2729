# Configures a project that adds SOURCE_DIR as a subdirectory: what is its own
# stays as it was, its C++ standard holds, nothing is installed, and warnings that it
# turns into errors are those that it has asked for.
set(work ${BUILD_DIR}/subdirectory-test)
file(REMOVE_RECURSE ${work})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/subdirectory -B ${work}
          -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER}
          -D THINWIRE_SOURCE_DIR=${SOURCE_DIR}
          -D CMAKE_EXPORT_COMPILE_COMMANDS=ON -D CMAKE_CXX_STANDARD=23
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "ended with ${result}\n${output}")
endif()

file(READ ${work}/build_type build_type)
if(NOT build_type STREQUAL "'' ''")
  message(FATAL_ERROR "the parent's build type has become ${build_type}")
endif()
file(GLOB_RECURSE installers ${work}/cmake_install.cmake)
foreach(installer IN LISTS installers)
  file(READ ${installer} text)
  if(text MATCHES "file\\(INSTALL")
    message(FATAL_ERROR "the parent would install Thinwire: ${installer}")
  endif()
endforeach()
file(READ ${work}/compile_commands.json commands)
if(commands MATCHES " (-W[^ ]*)")
  message(FATAL_ERROR "a subdirectory is compiled with ${CMAKE_MATCH_1}")
endif()
string(JSON last LENGTH "${commands}")
math(EXPR last "${last} - 1")
set(optimized 0)
foreach(at RANGE ${last})
  string(JSON command GET "${commands}" ${at} command)
  string(JSON file GET "${commands}" ${at} file)
  if(file MATCHES "/app.cpp$" AND command MATCHES " -(O|W|g|f[^i])")
    message(FATAL_ERROR "the parent's own file has flags: ${command}")
  elseif(NOT command MATCHES "-std=(c|gnu)\\+\\+2[3b] ")
    message(FATAL_ERROR "the parent's C++ 23 does not hold: ${command}")
  elseif(file MATCHES "^${SOURCE_DIR}/src/" AND command MATCHES " -O3 ")
    math(EXPR optimized "${optimized} + 1")
  endif()
endforeach()
if(NOT optimized EQUAL last)
  message(FATAL_ERROR "of ${last} sources, ${optimized} are optimized")
endif()
