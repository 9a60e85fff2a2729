# cmake --install build/release --prefix P: libraries, headers, programs, and
# the package that find_package(thinwire) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
get_property(modules GLOBAL PROPERTY THINWIRE_MODULES)
install(TARGETS ${modules} EXPORT thinwireTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT thinwireTargets NAMESPACE thinwire:: DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/thinwire
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/thinwireConfig.cmake.in
  ${PROJECT_BINARY_DIR}/thinwireConfig.cmake
  INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/thinwireConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/thinwireConfig.cmake
              ${PROJECT_BINARY_DIR}/thinwireConfigVersion.cmake
        DESTINATION ${package_dir})

foreach(program IN ITEMS thinwire_program train_gpt)
  if(TARGET ${program})
    # MPI and LibTorch may lie outside the system's library path, LibTorch even
    # inside this tree (.venv), which the first line alone leaves out.
    set_target_properties(${program} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    if(program STREQUAL train_gpt)
      set_target_properties(train_gpt PROPERTIES INSTALL_RPATH
                                                 ${TORCH_INSTALL_PREFIX}/lib)
    endif()
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
