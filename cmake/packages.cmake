# cpack --config build/release/CPackConfig.cmake: Debian packages of what
# install.cmake installs. train_gpt is in none, because no package has its LibTorch.
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

if(BUILD_SHARED_LIBS)
  set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set(cpp_package libthinwire${soversion})
  set(needs_cpp "${cpp_package} (= ${PROJECT_VERSION})")
  list(APPEND CPACK_COMPONENTS_ALL cpp)
  set(CPACK_DEBIAN_CPP_PACKAGE_NAME ${cpp_package})
  set(CPACK_DEBIAN_CPP_PACKAGE_SECTION libs)
  set(CPACK_COMPONENT_CPP_DESCRIPTION "${PROJECT_DESCRIPTION}: library of the C++ interface")
  # The packages that need it are made together with it.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
  set(CPACK_DEBIAN_C_PACKAGE_DEPENDS ${needs_cpp})
  set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS ${needs_cpp})
endif()

set(CPACK_DEBIAN_C_PACKAGE_NAME libthinwire-c0)
set(CPACK_DEBIAN_C_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_C_DESCRIPTION "${PROJECT_DESCRIPTION}: library of the C interface")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libthinwire-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DESCRIPTION
    "${PROJECT_DESCRIPTION}: headers, libraries, CMake package, pkg-config")
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
    "${PROJECT_DESCRIPTION}: the program thinwire, which plans runs and reads checkpoints")

# Each package has the licences of what is inside. That of component dev has them
# where install.cmake puts them.
set(with_licences ${CPACK_COMPONENTS_ALL})
list(REMOVE_ITEM with_licences dev)
foreach(component IN LISTS with_licences)
  string(TOUPPER ${component} upper)
  install(
    FILES ${PROJECT_SOURCE_DIR}/LICENSE ${thinwire_notices}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}
    COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
