# cpack --config build/release/CPackConfig.cmake: Debian packages of what
# install.cmake installs. train_gpt is in none, because no package has its LibTorch.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_CONTACT "The Thinwire authors <noreply@example.org>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL c dev tools)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)

set(CPACK_DEBIAN_C_PACKAGE_NAME libthinwire-c0)
set(CPACK_DEBIAN_C_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_C_DESCRIPTION "${PROJECT_DESCRIPTION}: library of the C interface")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libthinwire-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DESCRIPTION
    "${PROJECT_DESCRIPTION}: headers, static libraries, CMake package, pkg-config")
set(needed "libthinwire-c0 (= ${PROJECT_VERSION})" libhwy-dev libfmt-dev)
if(THINWIRE_HAVE_MPI)
  list(APPEND needed libopenmpi-dev)
endif()
list(JOIN needed ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME thinwire-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION
    "${PROJECT_DESCRIPTION}: the program thinwire, which plans runs and reads checkpoints")
include(CPack)
