# What a build can be asked for. The AUTO / ON / OFF options are resolved in
# dependencies.cmake and said in the closing summary.
include(CMakeDependentOption)

foreach(feature IN ITEMS MPI TORCH)
  set(THINWIRE_WITH_${feature} AUTO CACHE STRING
      "Use ${feature}: AUTO (when found), ON (missing is an error), OFF")
  set_property(CACHE THINWIRE_WITH_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT THINWIRE_WITH_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "THINWIRE_WITH_${feature} must be AUTO, ON or OFF, got "
                        "'${THINWIRE_WITH_${feature}}'")
  endif()
endforeach()

option(THINWIRE_BUILD_APPS "Build the programs thinwire and train_gpt"
       ${PROJECT_IS_TOP_LEVEL})
option(THINWIRE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(THINWIRE_INSTALL "Install libraries, headers and programs"
       ${PROJECT_IS_TOP_LEVEL})
option(THINWIRE_BUILD_PYTHON
       "Build the Python module thinwire._core, and nothing beside it" OFF)
if(THINWIRE_BUILD_PYTHON)
  # A wheel runs on machines that have neither this one's MPI nor its torch.
  set(THINWIRE_BUILD_APPS OFF)
  set(THINWIRE_BUILD_TESTS OFF)
  set(THINWIRE_WITH_TORCH OFF)
  if(NOT THINWIRE_WITH_MPI STREQUAL "ON")
    set(THINWIRE_WITH_MPI OFF)
  endif()
endif()
option(THINWIRE_BUILD_FUZZERS
       "Build the fuzzers: clang++ and its libclang-rt are needed" OFF)
if(THINWIRE_BUILD_FUZZERS AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "THINWIRE_BUILD_FUZZERS=ON needs clang++, got "
                      "${CMAKE_CXX_COMPILER_ID}; use the preset fuzz")
endif()
set(THINWIRE_SANITIZE "" CACHE STRING
    "Sanitizers for everything built here: 'address,undefined' or 'thread'")
option(THINWIRE_TEST_ALL
       "With sanitizers: every test, SIMD target and check, for hours" OFF)
# What has threads or memory of its own, unless THINWIRE_TEST_ALL.
set(THINWIRE_TEST_LESS OFF)
if(THINWIRE_SANITIZE AND NOT THINWIRE_TEST_ALL)
  set(THINWIRE_TEST_LESS ON)
endif()

if(PROJECT_IS_TOP_LEVEL
   AND NOT CMAKE_BUILD_TYPE
   AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

if(NOT CMAKE_CXX_STANDARD MATCHES "^2[0-9]$") # a later one may be asked for
  set(CMAKE_CXX_STANDARD 20)
endif()
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Eight sources to a translation unit take a third of the time of eight; one by
# one, with -D CMAKE_UNITY_BUILD=OFF, suits work on a few of them.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD ON)
endif()

# A release has the same bytes wherever it is built, with ccache and without it:
# no path of this machine is in them. Their build id depends on such paths, too.
find_program(CCACHE_PROGRAM ccache)
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
  if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR= ${CCACHE_PROGRAM})
  endif()
endif()
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the build directory, and not its name: then the objects of
  # one build serve another one, also that of an unpacked source distribution.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      env CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      ${CCACHE_PROGRAM})
endif()

if(THINWIRE_SANITIZE)
  # Above -O1 the compiler takes more than twice as long over the checks.
  add_compile_options(-fsanitize=${THINWIRE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all -O1 -g1)
  add_link_options(-fsanitize=${THINWIRE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes its own checks for reads of what was never written (in <regex>).
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  if(THINWIRE_TEST_ALL)
    add_compile_definitions(THINWIRE_TEST_ALL)
  endif()
else()
  # Lines for stack traces; all of -g takes a third longer to compile.
  add_compile_options($<$<CONFIG:RelWithDebInfo>:-g1>)
endif()
