package dev.phalanx.spark.node

import java.nio.file.attribute.PosixFilePermissions
import java.nio.file.{Files, Paths}

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.support.PhalanxSuite

class UnpackedJarSuite extends PhalanxSuite {

  test("the guard and the Python package are unpacked once, for this user only") {
    val home = UnpackedJar.get()
    assert(UnpackedJar.get() eq home, "JAR-26")
    assert(PosixFilePermissions.toString(Files.getPosixFilePermissions(home.folder)) == "rwx------", "JAR-26")
    assert(Files.isExecutable(Paths.get(home.guard)))
    assert(Files.isRegularFile(Paths.get(home.python, "phalanx", "__init__.py")))
  }

  test("where one folder takes nothing the next is tried, and a failure names all") {
    withFolder { folder =>
      val taken = Files.writeString(folder.resolve("taken"), "no folder")
      val home = UnpackedJar.unpack(Seq(taken, folder))
      assert(home.folder.getParent == folder && Files.isExecutable(Paths.get(home.guard)), "JAR-26")
      val thrown = intercept[TrainingException](UnpackedJar.unpack(Seq(taken, taken.resolve("below"))))
      assert(thrown.message.startsWith("Phalanx can't unpack its files: "), thrown.message)
      assert(thrown.message.contains(s": $taken; ") && thrown.message.endsWith(s": $taken/below"), thrown.message)
    }
  }

  test("what has gone is unpacked again") {
    val first = UnpackedJar.get()
    UnpackedJar.remove()
    assert(!Files.exists(first.folder))
    val second = UnpackedJar.get()
    assert(second.folder != first.folder && Files.isExecutable(Paths.get(second.guard)), "JAR-26")
  }
}
