# Installs BUILD_DIR, builds examples/ against what was installed, runs them.
set(work ${BUILD_DIR}/install-test)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

# By the environment, because a list does not survive being an argument.
set(ENV{CMAKE_PREFIX_PATH} ${prefix}:${TORCH})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix} --strip)
run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples -B ${work}/examples
    -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Debug
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror"
    -D CMAKE_CXX_FLAGS_DEBUG=-O0)
if(output MATCHES "CMake Warning")
  message("${output}")
  message(FATAL_ERROR "find_package(thinwire) must not warn")
endif()
run(${CMAKE_COMMAND} --build ${work}/examples)

# Licences, and that of every library whose code is inside.
file(READ ${prefix}/share/doc/thinwire/LICENSE output)
expect("Thinwire's licence" "Apache License")
file(READ ${prefix}/share/doc/thinwire/THIRD_PARTY_NOTICES output)
foreach(library IN ITEMS Highway fmt nlohmann-json xxHash)
  expect("a notice" "\n${library}\n=")
endforeach()
if(APPS)
  expect("a notice" "\nCLI11\n=")
endif()
if(APPS AND TORCH)
  expect("a notice" "\nLibTorch\n=")
endif()

# Nothing for a debugger is left, and a shared object exports its own alone.
file(GLOB installed ${prefix}/lib*/*.a ${prefix}/lib*/*.so ${prefix}/bin/*)
foreach(file IN LISTS installed)
  run(readelf --wide --section-headers ${file})
  if(output MATCHES " \\.debug_")
    message(FATAL_ERROR "${file} is not stripped")
  endif()
endforeach()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/shared_object
    -B ${work}/shared_object -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Debug
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(${CMAKE_COMMAND} --build ${work}/shared_object)
run(nm --dynamic --defined-only ${work}/shared_object/libwrapper.so)
expect("its function" " T wrapper_train\n")
if(output MATCHES "thinwire|[Hh]ighway|hwy|nlohmann")
  message("${output}")
  message(FATAL_ERROR "libwrapper.so exports what it links")
endif()

set(programs plain_buffers plain_engine own_loop separate_tensors)
if(TORCH)
  list(APPEND programs torch_engine torch_mixed_precision torch_module)
endif()
foreach(program IN LISTS programs)
  run(${work}/examples/${program})
  expect("a step on one rank" "step 400: .*, 0 bytes sent")
  if(MPIEXEC)
    run(${MPIEXEC} -np 2 ${work}/examples/${program})
    expect("a compressed step on two ranks" "step 400: compressed, .*, [1-9][0-9]* bytes sent")
  endif()
endforeach()

run(${work}/examples/sockets_transport)
expect("a step on three ranks" "step 400: compressed, .*, [1-9][0-9]* bytes sent")

# The C interface, as pkg-config finds it, and through ctypes.
file(GLOB pkgconfig ${prefix}/lib*/pkgconfig)
cmake_path(GET pkgconfig PARENT_PATH libraries)
set(ENV{PKG_CONFIG_PATH} ${pkgconfig})
set(ENV{LD_LIBRARY_PATH} ${libraries})
run(sh -c "cc -std=c99 -Wall -Wextra -Wpedantic -Werror \
${SOURCE_DIR}/examples/c/train.c $(pkg-config --cflags --libs thinwire_c) \
-o ${work}/train")
run(${work}/train)
expect("a step of two processes in C"
       "step 400: compressed, .*, [1-9][0-9]* bytes sent")
run(python3 ${SOURCE_DIR}/examples/c/train.py)
expect("a step through ctypes" "step 200: compressed, .*, [1-9][0-9]* bytes sent")
unset(ENV{LD_LIBRARY_PATH})

# A run that goes on, on another number of ranks.
file(REMOVE_RECURSE ${work}/checkpoints)
run(${work}/examples/checkpoint ${work}/checkpoints)
expect("a checkpoint" "step 300: loss .*, saved as .*/step-0000000300")
file(REMOVE_RECURSE ${work}/checkpoints/step-0000000300)
set(launcher "")
if(MPIEXEC)
  set(launcher ${MPIEXEC} -np 2)
endif()
run(${launcher} ${work}/examples/checkpoint ${work}/checkpoints)
expect("a run that goes on"
       "^resumes from .*/step-0000000200\n.*step 300: loss ")
file(REMOVE_RECURSE ${work}/checkpoints)
run(${work}/examples/checkpointer ${work}/checkpoints)
expect("a checkpoint" "step 400, saved as .*/step-0000000400")
foreach(step IN ITEMS 300 400)
  file(REMOVE_RECURSE ${work}/checkpoints/step-0000000${step})
endforeach()
run(${launcher} ${work}/examples/checkpointer ${work}/checkpoints)
expect("a run that goes on"
       "^resumes from .*/step-0000000200\n.*step 400, saved as ")
if(TORCH)
  file(REMOVE_RECURSE ${work}/checkpoints)
  run(${work}/examples/torch_mixed_precision ${work}/checkpoints)
  expect("a checkpoint" "saved as .*/step-0000000[34][0-9][0-9]\n")
  run(${work}/examples/torch_mixed_precision ${work}/checkpoints)
  expect("a run that goes on" "saved as .*/step-0000000[78][0-9][0-9]\n")
endif()

run(${work}/examples/ds_config ${SOURCE_DIR}/examples/configs/adam_auto.json)
expect("what a key does" "zero_optimization.stage.*left to this program: ")

if(APPS)
  # They run, and look for libraries nowhere but in their own tree.
  file(GLOB installed ${prefix}/bin/*)
  foreach(file IN LISTS installed)
    run(readelf --wide --dynamic ${file})
    if(output MATCHES "R(UN)?PATH[^\n]*[[:](/|:|])")
      message("${output}")
      message(FATAL_ERROR "${file} has a path of this machine")
    endif()
  endforeach()
  run(${prefix}/bin/thinwire --version)
  expect("the version" "^thinwire [0-9]+\\.[0-9]+\\.[0-9]+")
  if(TORCH)
    run(${prefix}/bin/train_gpt --version)
  endif()
endif()
# The programs stay: the tests example_* run them.
file(REMOVE_RECURSE ${prefix})
