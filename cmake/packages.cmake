# cpack --config build/release/CPackConfig.cmake: Debian packages of what
# install.cmake installs. train_gpt is in none, because no package has its LibTorch.
find_program(GZIP_PROGRAM gzip)
if(NOT GZIP_PROGRAM)  # a file of each package is compressed
  return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_CONTACT "The Thinwire authors <noreply@example.org>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL c dev)
if(TARGET thinwire_program)
  list(APPEND CPACK_COMPONENTS_ALL tools)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Programs that link a library name its package, and ldconfig learns of it.
set(debian ${PROJECT_BINARY_DIR}/debian)
file(WRITE ${debian}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_C_PACKAGE_CONTROL_EXTRA ${debian}/triggers)

if(BUILD_SHARED_LIBS)
  set(cpp_package libthinwire${PROJECT_VERSION})
  set(needs_cpp "${cpp_package} (= ${PROJECT_VERSION})")
  list(APPEND CPACK_COMPONENTS_ALL cpp)
  set(CPACK_DEBIAN_CPP_PACKAGE_NAME ${cpp_package})
  set(CPACK_DEBIAN_CPP_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_CPP_PACKAGE_CONTROL_EXTRA ${debian}/triggers)
  set(CPACK_COMPONENT_CPP_DESCRIPTION "The library of the C++ interface.")
  # The packages that need it are made together with it.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
  set(CPACK_DEBIAN_C_PACKAGE_DEPENDS ${needs_cpp})
  set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS ${needs_cpp})
endif()

set(CPACK_DEBIAN_C_PACKAGE_NAME libthinwire-c0)
set(CPACK_DEBIAN_C_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_C_DESCRIPTION "The library of the C interface.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libthinwire-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DESCRIPTION
    "Headers, libraries, the CMake package, and files of pkg-config.")
set(needed "libthinwire-c0 (= ${PROJECT_VERSION})")
if(BUILD_SHARED_LIBS)
  list(APPEND needed ${needs_cpp})
else()
  list(APPEND needed libhwy-dev libfmt-dev)
  if(THINWIRE_HAVE_MPI)
    list(APPEND needed libopenmpi-dev)
  endif()
endif()
list(JOIN needed ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME thinwire-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION
    "The program thinwire, which plans runs and reads checkpoints.")

# Each package has what Debian asks for: whose it is, and its changes. Component dev
# also has the licences where install.cmake puts them.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # or SOURCE_DATE_EPOCH
file(WRITE ${debian}/copyright
     "Thinwire, from ${PROJECT_HOMEPAGE_URL}\n"
     "Copyright 2026 The Thinwire authors\n"
     "License: Apache-2.0, whose text is in /usr/share/common-licenses/Apache-2.0.\n"
     "Libraries whose code is inside are named in THIRD_PARTY_NOTICES, if any are.\n")
file(WRITE ${debian}/changelog
     "thinwire (${PROJECT_VERSION}) unstable; urgency=medium\n\n"
     "  * New version; its changes are in CHANGELOG.md of the sources.\n\n"
     " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
set(compressed changelog)
if(TARGET thinwire_program)
  configure_file(${PROJECT_SOURCE_DIR}/apps/thinwire/thinwire.1
                 ${debian}/thinwire.1 @ONLY)
  install(FILES ${debian}/thinwire.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
          COMPONENT tools EXCLUDE_FROM_ALL)
  list(APPEND compressed thinwire.1)
endif()
execute_process(COMMAND ${GZIP_PROGRAM} -9nf ${compressed}
                WORKING_DIRECTORY ${debian} COMMAND_ERROR_IS_FATAL ANY)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(documents ${debian}/copyright ${debian}/changelog.gz)
  if(NOT component STREQUAL "dev")
    list(APPEND documents ${thinwire_notices})
  endif()
  install(
    FILES ${documents}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}
    COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
