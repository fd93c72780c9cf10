package dev.phalanx.spark.node

import java.nio.file.Files

import dev.phalanx.spark.support.PhalanxSuite

class HadoopFolderSuite extends PhalanxSuite {

  test("files are copied to a folder that Hadoop makes, by its URI") {
    withFolder { folder =>
      val logs = Seq("rank-0.log", "rank-1.log").map(name => Files.writeString(folder.resolve(name), name).toString)
      assert(HadoopFolder.copy(s"file:$folder/kept/phalanx-a", logs).isEmpty)
      assert(Files.readString(folder.resolve("kept/phalanx-a/rank-1.log")) == "rank-1.log")
    }
  }

  test("why they can't be is told") {
    assert(HadoopFolder.copy("nosuchscheme://bucket/logs", Nil).exists(_.contains("nosuchscheme")))
  }
}
