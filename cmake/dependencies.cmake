# Every library this project takes from outside; docs/design/0002 says why each.
# All that is missing is named in one message.
set(thinwire_missing "")
macro(thinwire_need found debian_package)
  if(NOT ${found})
    list(APPEND thinwire_missing ${debian_package})
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(hwy QUIET)
thinwire_need(hwy_FOUND libhwy-dev)
if(THINWIRE_BUILD_PYTHON)
  find_path(FMT_INCLUDE_DIR fmt/format-inl.h)
  thinwire_need(FMT_INCLUDE_DIR libfmt-dev)
else()
  find_package(fmt QUIET)
  thinwire_need(fmt_FOUND libfmt-dev)
endif()
find_package(nlohmann_json QUIET)
thinwire_need(nlohmann_json_FOUND nlohmann-json3-dev)
# The header only: see src/core/checksum.cpp.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
thinwire_need(XXHASH_INCLUDE_DIR libxxhash-dev)
if(THINWIRE_BUILD_APPS OR THINWIRE_BUILD_PYTHON)
  find_package(CLI11 QUIET)
  thinwire_need(CLI11_FOUND libcli11-dev)
endif()
if(THINWIRE_BUILD_PYTHON)
  find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module)
  thinwire_need(Python_FOUND python3-dev)
endif()
if(THINWIRE_BUILD_TESTS)
  find_package(GTest QUIET)
  thinwire_need(GTest_FOUND libgtest-dev)
  find_package(rapidcheck QUIET)
  thinwire_need(rapidcheck_FOUND librapidcheck-dev)
endif()
if(thinwire_missing)
  list(JOIN thinwire_missing " " thinwire_missing)
  message(FATAL_ERROR
    "Thinwire needs libraries that were not found. These are Debian's names:\n"
    "  apt-get install ${thinwire_missing}\n"
    "In a clone, scripts/bootstrap installs them and all else. "
    "CMAKE_PREFIX_PATH names other places where they are.")
endif()
if(THINWIRE_BUILD_PYTHON)
  include(cmake/fmt_inside.cmake)
endif()
add_library(thinwire_xxhash INTERFACE IMPORTED)
target_include_directories(thinwire_xxhash INTERFACE ${XXHASH_INCLUDE_DIR})

# Sets THINWIRE_HAVE_<feature> and, when it is missing, THINWIRE_WHY_NOT_<feature>.
macro(thinwire_resolve feature found package)
  set(THINWIRE_HAVE_${feature} OFF)
  if(THINWIRE_WITH_${feature} STREQUAL "OFF")
    set(THINWIRE_WHY_NOT_${feature} "switched off")
  elseif(${found})
    set(THINWIRE_HAVE_${feature} ON)
  elseif(THINWIRE_WITH_${feature} STREQUAL "ON")
    message(FATAL_ERROR
      "THINWIRE_WITH_${feature}=ON, but it was not found: install ${package}")
  else()
    set(THINWIRE_WHY_NOT_${feature} "not found (install ${package})")
  endif()
endmacro()

if(NOT THINWIRE_WITH_MPI STREQUAL "OFF")
  # The C interface is all we use; C is enabled only because FindMPI asks.
  enable_language(C)
  find_package(MPI QUIET COMPONENTS C)
endif()
thinwire_resolve(MPI MPI_C_FOUND "libopenmpi-dev or libmpich-dev")

if(NOT THINWIRE_WITH_TORCH STREQUAL "OFF")
  # The wheel in .venv is what scripts/bootstrap installs; an own LibTorch is
  # named by CMAKE_PREFIX_PATH or Torch_DIR.
  file(GLOB thinwire_venv_torch
       ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake)
  list(APPEND CMAKE_PREFIX_PATH ${thinwire_venv_torch})
  # It warns of an optional part (kineto) that CPU wheels do not have.
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch QUIET)
  unset(CMAKE_MESSAGE_LOG_LEVEL)
endif()
thinwire_resolve(TORCH Torch_FOUND "torch, by running scripts/bootstrap")
