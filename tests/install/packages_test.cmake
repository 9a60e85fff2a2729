# Makes the Debian packages of BUILD_DIR, whose targets are built, and looks inside.
set(work ${BUILD_DIR}/packages-test)
file(REMOVE_RECURSE ${work})

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

run(${CPACK} --config ${BUILD_DIR}/CPackConfig.cmake -B ${work}
    -D CMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON)

# holds(PACKAGE REGEX...): the package names what it needs and holds these files.
function(holds package)
  file(GLOB file ${work}/${package}_*.deb)
  run(dpkg-deb --field ${file} Depends)
  if(NOT output MATCHES "libhwy")
    message(FATAL_ERROR "${package} does not say what it needs: ${output}")
  endif()
  run(dpkg-deb --contents ${file})
  foreach(regex IN LISTS ARGN)
    if(NOT output MATCHES "${regex}")
      message("${output}")
      message(FATAL_ERROR "${package} lacks ${regex}")
    endif()
  endforeach()
endfunction()

holds(libthinwire-c0 "/usr/lib/libthinwire_c\\.so\\.0 -> libthinwire_c\\.so\\.0"
       "/doc/libthinwire-c0/copyright\n" "/doc/libthinwire-c0/THIRD_PARTY_NOTICES\n")
holds(libthinwire-dev "/usr/include/thinwire/thinwire\\.h\n"
       "/libthinwire_engine\\.a\n" "/libthinwire_c\\.so -> libthinwire_c\\.so\\.0\n"
       "/pkgconfig/thinwire_c\\.pc\n" "/cmake/thinwire/thinwireConfig\\.cmake\n"
       "/doc/thinwire/THIRD_PARTY_NOTICES\n")
if(APPS)
  holds(thinwire-tools "/usr/bin/thinwire\n"
         "/doc/thinwire-tools/THIRD_PARTY_NOTICES\n")
endif()
file(REMOVE_RECURSE ${work})
