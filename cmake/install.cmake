# cmake --install build/release --prefix P [--strip]: libraries, headers, programs,
# licences, and the package that find_package(thinwire) reads. A wheel has only the
# module and the licences.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(THINWIRE_BUILD_PYTHON)
  # pyproject.toml names LICENSE.
  install(FILES ${thinwire_notices} COMPONENT python
          DESTINATION ${SKBUILD_METADATA_DIR}/licenses)
  return()
endif()
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${thinwire_notices}
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

# From the folder of pkg-config's files, which Debian puts one level deeper.
file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
     ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" to_prefix ${to_prefix})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
get_property(modules GLOBAL PROPERTY THINWIRE_MODULES)
if(BUILD_SHARED_LIBS)
  set(modules thinwire)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/thinwire.pc.in
                 ${PROJECT_BINARY_DIR}/thinwire.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/thinwire.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(TARGETS ${modules} EXPORT thinwireTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp
                NAMELINK_COMPONENT dev)
# CMake strips programs only; what users link needs no symbols of the debugger.
set(archives "")
foreach(module IN LISTS modules)
  get_target_property(type ${module} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    list(APPEND archives
         "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/lib${module}.a")
  endif()
endforeach()
if(archives)
  list(JOIN archives "\"\n \"" archives)
  install(CODE "
if(CMAKE_INSTALL_DO_STRIP)
  execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-debug
  \"${archives}\" COMMAND_ERROR_IS_FATAL ANY)
endif()")
endif()
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

if(TARGET thinwire_c)
  install(TARGETS thinwire_c EXPORT thinwireTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c
                  NAMELINK_COMPONENT dev)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/thinwire_c.pc.in
                 ${PROJECT_BINARY_DIR}/thinwire_c.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/thinwire_c.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

if(TARGET thinwire_program)
  install(TARGETS thinwire_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
                                           COMPONENT tools)
endif()

if(TARGET train_gpt)
  install(TARGETS train_gpt RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
                                    COMPONENT train_gpt)
  # The program finds LibTorch through a link beside the libraries, which the
  # machine's owner or a package may point elsewhere. One that works is kept.
  set(libtorch ${CMAKE_INSTALL_LIBDIR}/thinwire/libtorch)
  file(RELATIVE_PATH from_programs ${CMAKE_INSTALL_FULL_BINDIR}
       ${CMAKE_INSTALL_PREFIX}/${libtorch})
  set_property(TARGET train_gpt APPEND PROPERTY INSTALL_RPATH
                                                "$ORIGIN/${from_programs}")
  install(CODE "
set(link \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${libtorch}\")
if(NOT EXISTS \"\${link}\")
  cmake_path(GET link PARENT_PATH folder)
  file(MAKE_DIRECTORY \"\${folder}\")
  file(CREATE_LINK \"${TORCH_INSTALL_PREFIX}/lib\" \"\${link}\" SYMBOLIC)
  message(STATUS \"Linking: \${link} -> ${TORCH_INSTALL_PREFIX}/lib\")
endif()" COMPONENT train_gpt)
endif()
