# Not uploaded, and not tested by vcpkg: see ../README.md.
vcpkg_download_distfile(
  archive
  URLS "@SOURCE_URL@"
  FILENAME "thinwire-${VERSION}.tar.gz"
  SHA512 0)
vcpkg_extract_source_archive(source ARCHIVE "${archive}")

set(with_mpi OFF)
if("mpi" IN_LIST FEATURES)
  set(with_mpi ON)
endif()
vcpkg_cmake_configure(
  SOURCE_PATH "${source}"
  OPTIONS
    -DTHINWIRE_BUILD_APPS=OFF
    -DTHINWIRE_BUILD_TESTS=OFF
    -DTHINWIRE_WITH_TORCH=OFF
    -DTHINWIRE_WITH_MPI=${with_mpi}
    "-DTHINWIRE_NOTICE_FMT=${CURRENT_INSTALLED_DIR}/share/fmt/copyright"
    "-DTHINWIRE_NOTICE_HIGHWAY=${CURRENT_INSTALLED_DIR}/share/highway/copyright"
    "-DTHINWIRE_NOTICE_NLOHMANN_JSON=${CURRENT_INSTALLED_DIR}/share/nlohmann-json/copyright"
    "-DTHINWIRE_NOTICE_XXHASH=${CURRENT_INSTALLED_DIR}/share/xxhash/copyright")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/thinwire)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include"
     "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE"
                        "${CURRENT_PACKAGES_DIR}/share/doc/thinwire/THIRD_PARTY_NOTICES")
