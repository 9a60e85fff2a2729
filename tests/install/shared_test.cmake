# Builds SOURCE_DIR with BUILD_SHARED_LIBS, installs it, and uses it by find_package,
# by pkg-config and as a Debian package.
set(work ${BUILD_DIR}/shared-test)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${prefix} ${work}/packages)
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(with_mpi OFF)
if(MPIEXEC)
  set(with_mpi ON)
endif()
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${work}/build -G ${GENERATOR}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D BUILD_SHARED_LIBS=ON
    -D CMAKE_INSTALL_PREFIX=/usr -D THINWIRE_BUILD_TESTS=OFF
    -D THINWIRE_WITH_TORCH=OFF -D THINWIRE_WITH_MPI=${with_mpi})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${CMAKE_COMMAND} --install ${work}/build --prefix ${prefix} --strip)
file(GLOB_RECURSE archives ${prefix}/lib*/*.a)
if(archives)
  message(FATAL_ERROR "archives are installed: ${archives}")
endif()

file(GLOB_RECURSE library ${prefix}/lib*/libthinwire.so)
cmake_path(GET library PARENT_PATH libraries)
run(readelf --dynamic --wide ${library})
expect("its name" "SONAME.*\\[libthinwire\\.so\\.[0-9]+\\.[0-9]+\\]")
run(nm --dynamic --defined-only --format=posix ${library})
expect("a public function" "_ZN8thinwire4comm16from_environmentEv T")
string(REGEX REPLACE "_Z[A-Z]*8thinwire[^\n]*\n" "" others "${output}")
if(NOT others STREQUAL "")
  message(FATAL_ERROR "it exports names outside of namespace thinwire:\n${others}")
endif()

# find_package, with what this build has and with what it lacks.
set(ENV{CMAKE_PREFIX_PATH} ${prefix})
set(components "")
if(MPIEXEC)
  set(components mpi)
endif()
set(outside -S ${CMAKE_CURRENT_LIST_DIR}/shared_library -G ${GENERATOR}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Debug
    -D SOURCE=${SOURCE_DIR}/examples/plain_engine.cpp)
run(${CMAKE_COMMAND} ${outside} -B ${work}/outside -D COMPONENTS=${components})
run(${CMAKE_COMMAND} --build ${work}/outside)
run(${work}/outside/engine)
expect("a step on one rank" "step 400: .*, 0 bytes sent")
execute_process(
  COMMAND ${CMAKE_COMMAND} ${outside} -B ${work}/lacking -D COMPONENTS=nothing
  RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(result EQUAL 0)
  message(FATAL_ERROR "a component that does not exist was found")
endif()

# pkg-config, in C++ and in C.
set(ENV{PKG_CONFIG_PATH} ${libraries}/pkgconfig)
set(ENV{LD_LIBRARY_PATH} ${libraries})
run(sh -c "${COMPILER} -std=c++20 ${SOURCE_DIR}/examples/plain_buffers.cpp \
$(pkg-config --cflags --libs thinwire) -o ${work}/buffers")
run(${work}/buffers)
expect("a step on one rank" "step 400: .*, 0 bytes sent")
if(MPIEXEC)
  run(${MPIEXEC} -np 2 ${work}/buffers)
  expect("a step on two ranks" "step 400: compressed, .*, [1-9][0-9]* bytes sent")
endif()
run(sh -c "cc -std=c99 ${SOURCE_DIR}/examples/c/train.c \
$(pkg-config --cflags --libs thinwire_c) -o ${work}/train")
run(${work}/train)
expect("a step of two processes in C" "step 400: compressed, ")

if(PACKAGES)
  run(${CPACK} --config ${work}/build/CPackConfig.cmake -B ${work}/packages
      -D CMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON)
  file(GLOB package ${work}/packages/libthinwire[0-9]*.deb)
  run(dpkg-deb --contents ${package})
  expect("the library" "/usr/lib/[a-z0-9_]+-linux-gnu/libthinwire\\.so\\.[0-9]+\\.[0-9]+ -> ")
  run(dpkg-deb --field ${package} Depends)
  expect("what it needs" "libhwy")
  file(GLOB package ${work}/packages/libthinwire-c0_*.deb)
  run(dpkg-deb --field ${package} Depends)
  expect("what it needs" "libthinwire[0-9]+\\.[0-9]+ \\(=")
  # Packages that are not for Debian's archive close no bug of it.
  file(GLOB packages ${work}/packages/*.deb)
  run(lintian --allow-root --fail-on error
      --suppress-tags initial-upload-closes-no-bugs ${packages})
endif()
