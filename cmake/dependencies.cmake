# Every library this project takes from outside; docs/design/0002 says why each.
find_package(Threads REQUIRED)
find_package(hwy REQUIRED)
if(THINWIRE_BUILD_PYTHON)
  include(cmake/fmt_inside.cmake)
else()
  find_package(fmt REQUIRED)
endif()
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED libxxhash)
# The header only: see src/core/checksum.cpp.
add_library(thinwire_xxhash INTERFACE IMPORTED)
target_include_directories(thinwire_xxhash INTERFACE ${xxhash_INCLUDE_DIRS})

if(THINWIRE_BUILD_APPS OR THINWIRE_BUILD_PYTHON)
  find_package(CLI11 REQUIRED)
endif()
if(THINWIRE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()

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
